//! Filters of `ss` and `tap`: conditions, each tool's own, joined by and, or, not and parentheses.

use std::fmt;
use std::str::FromStr;

/// Parentheses and negations within one another.
const DEPTH: usize = 32;

/// A parsed filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter<C> {
    /// Everything.
    All,
    /// What a condition holds of.
    If(C),
    /// Not.
    Not(Box<Self>),
    /// Both.
    And(Box<Self>, Box<Self>),
    /// One of them.
    Or(Box<Self>, Box<Self>),
}

/// What a tool's filters can ask for.
pub trait Condition: Sized {
    /// What there is to be written, for who wrote something else.
    const KNOWN: &'static str;
    /// Whether 'and' may be left away, as in ss(8).
    const MAY_LEAVE_AND_AWAY: bool;

    /// The condition that begins with `word`, of which `words` are what follows; `None` if there is none of that name.
    fn parse(word: &str, words: &mut Words<'_>) -> Option<Result<Filter<Self>, FilterError>>;
}

/// What is wrong with a filter: where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    at: String,
    why: &'static str,
}

impl FilterError {
    /// Of a word.
    pub fn of(word: &str, why: &'static str) -> Self {
        Self { at: format!("'{word}'"), why }
    }

    fn end(why: &'static str) -> Self {
        Self { at: "its end".into(), why }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in the filter, at {}: {}", self.at, self.why)
    }
}

impl std::error::Error for FilterError {}

impl<C> Filter<C> {
    /// Whether it admits what `holds` answers for.
    pub fn admits(&self, holds: &impl Fn(&C) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::If(condition) => holds(condition),
            Self::Not(filter) => !filter.admits(holds),
            Self::And(one, other) => one.admits(holds) && other.admits(holds),
            Self::Or(one, other) => one.admits(holds) || other.admits(holds),
        }
    }

    /// Whether it has a condition of that kind.
    pub fn has(&self, is_one: &impl Fn(&C) -> bool) -> bool {
        match self {
            Self::All => false,
            Self::If(condition) => is_one(condition),
            Self::Not(filter) => filter.has(is_one),
            Self::And(one, other) | Self::Or(one, other) => one.has(is_one) || other.has(is_one),
        }
    }
}

impl<C: Condition> FromStr for Filter<C> {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let all = split(text);
        let mut words = Words { rest: &all };
        if words.rest.is_empty() {
            return Ok(Self::All);
        }
        let filter = either(&mut words, 0)?;
        match words.next() {
            None => Ok(filter),
            Some(word) => Err(FilterError::of(word, "'and' or 'or' is missing before it")),
        }
    }
}

/// The words of a filter; operators and parentheses need no blanks around them.
fn split(text: &str) -> Vec<&str> {
    const OPERATORS: &str = "()=<>!&|";
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let two = rest.get(..2).filter(|two| ["==", "!=", "<=", ">=", "&&", "||"].contains(two));
        let len = match two {
            Some(two) => two.len(),
            None if OPERATORS.contains(first) => 1,
            None => rest.find(|c: char| c.is_whitespace() || OPERATORS.contains(c)).unwrap_or(rest.len()),
        };
        let (word, behind) = rest.split_at(len);
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

/// The words that are left.
pub struct Words<'a> {
    rest: &'a [&'a str],
}

impl<'a> Words<'a> {
    /// The next one.
    pub fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The next one. Errors: there is none, and `why` says what is wanted.
    pub fn wanted(&mut self, why: &'static str) -> Result<&'a str, FilterError> {
        self.next().ok_or_else(|| FilterError::end(why))
    }

    /// Takes the next one if it is one of these.
    pub fn take(&mut self, any_of: &[&str]) -> bool {
        let is_next = self.rest.first().is_some_and(|word| any_of.contains(word));
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }
}

fn either<C: Condition>(words: &mut Words<'_>, depth: usize) -> Result<Filter<C>, FilterError> {
    let mut filter = both(words, depth)?;
    while words.take(&["or", "|", "||"]) {
        filter = Filter::Or(filter.into(), both(words, depth)?.into());
    }
    Ok(filter)
}

fn both<C: Condition>(words: &mut Words<'_>, depth: usize) -> Result<Filter<C>, FilterError> {
    let mut filter = one(words, depth)?;
    loop {
        let is_over = words.rest.first().is_none_or(|word| ["or", "|", "||", ")"].contains(word));
        if !words.take(&["and", "&", "&&"]) && (is_over || !C::MAY_LEAVE_AND_AWAY) {
            return Ok(filter);
        }
        filter = Filter::And(filter.into(), one(words, depth)?.into());
    }
}

fn one<C: Condition>(words: &mut Words<'_>, depth: usize) -> Result<Filter<C>, FilterError> {
    let word = words.wanted(C::KNOWN)?;
    if depth >= DEPTH {
        return Err(FilterError::of(word, "too many parentheses and negations within one another"));
    }
    match word {
        "not" | "!" => Ok(Filter::Not(one(words, depth + 1)?.into())),
        "(" => {
            let filter = either(words, depth + 1)?;
            match words.wanted("a closing parenthesis is missing")? {
                ")" => Ok(filter),
                word => Err(FilterError::of(word, "a closing parenthesis is missing before it")),
            }
        }
        _ => C::parse(word, words).unwrap_or_else(|| Err(FilterError::of(word, C::KNOWN))),
    }
}
