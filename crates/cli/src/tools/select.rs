//! Which connections `ss` lists: the filters of iproute2's ss(8), as far as a lane has what they look at, and what only we know.

use shunpike_broker::report::Connection;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Parentheses and negations within one another.
const DEPTH: usize = 32;

/// A filter, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Everything.
    All,
    /// A number that compares so.
    Number(Field, Compare, u32),
    /// The own end's address, or the peer's.
    Address(End, Network, Option<u16>),
    /// On a lane, or on TCP.
    Lane(bool),
    /// The process's name.
    Command(String),
    /// Not.
    Not(Box<Filter>),
    /// Both.
    And(Box<Filter>, Box<Filter>),
    /// One of them.
    Or(Box<Filter>, Box<Filter>),
}

/// What has a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A port.
    Port(End),
    /// The process.
    Pid,
    /// Its user.
    Uid,
}

/// An end of a connection, as its process sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its own: `src`, `sport`.
    Local,
    /// The other one: `dst`, `dport`.
    Peer,
}

/// How numbers are compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// =
    Eq,
    /// !=
    Ne,
    /// <
    Lt,
    /// <=
    Le,
    /// >
    Gt,
    /// >=
    Ge,
}

/// Addresses that begin with the same bits; `None`: every address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Network(Option<(IpAddr, u8)>);

/// What is wrong with a filter: the word, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    word: String,
    why: &'static str,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, why } = self;
        write!(
            f,
            "'{word}' in the filter: {why}; as in 'sport = :6379 and state lane', 'dst 10.0.0.0/8', 'pid = 4711', 'comm = nginx'"
        )
    }
}

impl std::error::Error for FilterError {}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let words = words(text);
        let mut parser = Parser { words: &words, depth: 0 };
        if parser.words.is_empty() {
            return Ok(Self::All);
        }
        let filter = parser.either()?;
        match parser.words.first() {
            None => Ok(filter),
            Some(word) => Err(wrong(word, "nothing was opened that this closes")),
        }
    }
}

impl Filter {
    /// Whether the connection is one of those asked for.
    pub fn admits(&self, connection: &Connection) -> bool {
        match self {
            Self::All => true,
            Self::Number(field, compare, wanted) => {
                field.of(connection).is_some_and(|number| compare.holds(number, *wanted))
            }
            Self::Address(end, network, port) => end.of(connection).is_some_and(|address| {
                network.holds(address.ip().to_canonical()) && port.is_none_or(|port| port == address.port())
            }),
            Self::Lane(wanted) => (connection.mode == "SMCD") == *wanted,
            Self::Command(name) => connection.comm == *name,
            Self::Not(filter) => !filter.admits(connection),
            Self::And(one, other) => one.admits(connection) && other.admits(connection),
            Self::Or(one, other) => one.admits(connection) || other.admits(connection),
        }
    }
}

impl Field {
    fn of(self, connection: &Connection) -> Option<u32> {
        match self {
            Self::Port(end) => end.of(connection).map(|address| address.port().into()),
            Self::Pid => Some(connection.pid),
            Self::Uid => Some(connection.uid),
        }
    }
}

impl End {
    fn of(self, connection: &Connection) -> Option<SocketAddr> {
        let text = match self {
            Self::Local => &connection.local,
            Self::Peer => &connection.remote,
        };
        text.parse().ok()
    }
}

impl Compare {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Eq,
            "!=" | "ne" | "neq" => Self::Ne,
            "<" | "lt" => Self::Lt,
            "<=" | "le" | "leq" => Self::Le,
            ">" | "gt" => Self::Gt,
            ">=" | "ge" | "geq" => Self::Ge,
            _ => return None,
        })
    }

    fn holds(self, number: u32, wanted: u32) -> bool {
        match self {
            Self::Eq => number == wanted,
            Self::Ne => number != wanted,
            Self::Lt => number < wanted,
            Self::Le => number <= wanted,
            Self::Gt => number > wanted,
            Self::Ge => number >= wanted,
        }
    }
}

impl Network {
    fn holds(self, address: IpAddr) -> bool {
        let Some((network, bits)) = self.0 else { return true };
        let of_v4 = |ip: std::net::Ipv4Addr| u32::from(ip).checked_shr(32 - u32::from(bits)).unwrap_or(0);
        let of_v6 = |ip: std::net::Ipv6Addr| u128::from(ip).checked_shr(128 - u32::from(bits)).unwrap_or(0);
        match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => of_v4(network) == of_v4(address),
            (IpAddr::V6(network), IpAddr::V6(address)) => of_v6(network) == of_v6(address),
            _ => false,
        }
    }
}

/// The words of a filter; operators and parentheses need no blanks around them.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let two = rest.get(..2).filter(|two| ["==", "!=", "<=", ">=", "&&", "||"].contains(two));
        let len = match two {
            Some(two) => two.len(),
            None if "()=<>!&|".contains(first) => first.len_utf8(),
            None => rest.find(|c: char| c.is_whitespace() || "()=<>!&|".contains(c)).unwrap_or(rest.len()),
        };
        words.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    words
}

fn wrong(word: &str, why: &'static str) -> FilterError {
    FilterError { word: word.to_owned(), why }
}

struct Parser<'a> {
    words: &'a [String],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// The word after `before`, which needs one.
    fn after(&mut self, before: &str, why: &'static str) -> Result<&'a str, FilterError> {
        self.next().ok_or_else(|| wrong(before, why))
    }

    fn takes(&mut self, any_of: &[&str]) -> bool {
        let is_next = self.words.first().is_some_and(|word| any_of.contains(&word.as_str()));
        if is_next {
            self.words = &self.words[1..];
        }
        is_next
    }

    fn either(&mut self) -> Result<Filter, FilterError> {
        let mut filter = self.both()?;
        while self.takes(&["or", "|", "||"]) {
            filter = Filter::Or(filter.into(), self.both()?.into());
        }
        Ok(filter)
    }

    /// With or without 'and' between them, as ss(8) has it.
    fn both(&mut self) -> Result<Filter, FilterError> {
        let mut filter = self.one()?;
        loop {
            let is_named = self.takes(&["and", "&", "&&"]);
            let ends = |word: &String| ["or", "|", "||", ")"].contains(&word.as_str());
            if !is_named && self.words.first().is_none_or(ends) {
                return Ok(filter);
            }
            filter = Filter::And(filter.into(), self.one()?.into());
        }
    }

    fn one(&mut self) -> Result<Filter, FilterError> {
        let Some(word) = self.next() else { return Err(wrong("", "it ends where a condition should come")) };
        match word {
            "not" | "!" => self.within(word, |parser| Ok(Filter::Not(parser.one()?.into()))),
            "(" => self.within(word, |parser| {
                let filter = parser.either()?;
                if parser.takes(&[")"]) { Ok(filter) } else { Err(wrong("(", "it is not closed")) }
            }),
            "sport" => self.number(word, Field::Port(End::Local)),
            "dport" => self.number(word, Field::Port(End::Peer)),
            "pid" => self.number(word, Field::Pid),
            "uid" => self.number(word, Field::Uid),
            "src" => self.address(word, End::Local),
            "dst" => self.address(word, End::Peer),
            "state" => match self.after(word, "say 'lane' or 'tcp' behind it")? {
                "lane" | "smcd" => Ok(Filter::Lane(true)),
                "tcp" => Ok(Filter::Lane(false)),
                "all" | "connected" | "established" => Ok(Filter::All),
                other => Err(wrong(other, "no such state: there are 'lane' and 'tcp'")),
            },
            "comm" => {
                self.takes(&["=", "=="]);
                self.after(word, "say the process's name behind it").map(|name| Filter::Command(name.into()))
            }
            _ => Err(wrong(
                word,
                "not a condition: there are sport, dport, src, dst, state, pid, uid and comm",
            )),
        }
    }

    fn within(
        &mut self,
        word: &str,
        parse: impl FnOnce(&mut Self) -> Result<Filter, FilterError>,
    ) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(wrong(word, "too many within one another"));
        }
        let filter = parse(self);
        self.depth -= 1;
        filter
    }

    fn number(&mut self, name: &str, field: Field) -> Result<Filter, FilterError> {
        let mut word = self.after(name, "say what it is to be, as '= 80'")?;
        let compare = Compare::named(word);
        if compare.is_some() {
            word = self.after(word, "a number is to come behind it")?;
        }
        let digits =
            if matches!(field, Field::Port(_)) { word.strip_prefix(':').unwrap_or(word) } else { word };
        let number: u32 = digits.parse().map_err(|_| wrong(word, "not a number"))?;
        if matches!(field, Field::Port(_)) && number > u16::MAX.into() {
            return Err(wrong(word, "no port: they end at 65535"));
        }
        Ok(Filter::Number(field, compare.unwrap_or(Compare::Eq), number))
    }

    fn address(&mut self, name: &str, end: End) -> Result<Filter, FilterError> {
        self.takes(&["=", "=="]);
        let word = self.after(name, "say an address behind it, as 127.0.0.1 or 10.0.0.0/8")?;
        if let Ok(address) = word.parse::<SocketAddr>() {
            let ip = address.ip();
            return Ok(Filter::Address(end, Network(Some((ip, bits_of(ip)))), Some(address.port())));
        }
        // `*:80` and `:80`
        if let Some(port) = word.strip_prefix('*').unwrap_or(word).strip_prefix(':')
            && let Ok(port) = port.parse()
        {
            return Ok(Filter::Address(end, Network(None), Some(port)));
        }
        let (ip, prefix) = word.split_once('/').map_or((word, None), |(ip, bits)| (ip, Some(bits)));
        let ip = ip.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = ip.parse().map_err(|_| wrong(word, "not an address"))?;
        let bits = match prefix.map(str::parse) {
            None => bits_of(ip),
            Some(Ok(bits)) if bits <= bits_of(ip) => bits,
            Some(_) => return Err(wrong(word, "not a length of a prefix")),
        };
        Ok(Filter::Address(end, Network(Some((ip, bits))), None))
    }
}

fn bits_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of redis-server, PID 7, user 8, from port 6379 to port 50000, on a lane.
    fn connection() -> Connection {
        let direction = serde_json::json!({
            "mode": "lane", "generation": 1, "own_cursor": 0, "peer_cursor": 0, "ring": 1, "window": 1, "token": "",
            "bytes": 0, "calls": 0, "prod_flags": 0, "state_flags": 0, "sizes": [], "tcp_bytes": 0, "copy": false,
        });
        serde_json::from_value(serde_json::json!({
            "state": "ACTIVE", "uid": 8, "pid": 7, "comm": "redis-server", "fd": 9, "cookie": 1, "role": "server",
            "local": "10.1.2.3:6379", "remote": "[::1]:50000", "mode": "SMCD", "reason": null, "peer_reason": null,
            "tx": direction, "rx": direction, "gid": null, "link": null, "slot": null,
        }))
        .expect("a connection")
    }

    #[test]
    fn filters_admit_what_they_say() {
        let connection = connection();
        for (text, admits) in [
            ("", true),
            ("sport = :6379 and state lane", true),
            ("sport=:6379 state lane", true),
            ("sport eq 6379", true),
            ("sport 6379", true),
            ("sport != :6379", false),
            ("sport > :1024 && sport < 6380", true),
            ("dport >= 50001 or dport <= 49999", false),
            ("( dport = :50000 )", true),
            ("not (sport :1 or sport :2)", true),
            ("! state tcp", true),
            ("state smcd | state tcp", true),
            ("src 10.0.0.0/8", true),
            ("src 10.1.2.3:6379", true),
            ("src 10.1.2.3:6380", false),
            ("src 11.0.0.0/8", false),
            ("src 0.0.0.0/0", true),
            ("src :6379", true),
            ("src *:6379", true),
            ("dst ::1", true),
            ("dst [::1]:50000", true),
            ("dst ::/0", true),
            ("dst 0.0.0.0/0", false),
            ("pid = 7", true),
            ("uid 8 and comm = redis-server", true),
            ("comm redis", false),
        ] {
            let filter: Filter = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(filter.admits(&connection), admits, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("sport = ssh", "ssh"),
            ("sport = :70000", ":70000"),
            ("sport", "sport"),
            ("port 80", "port"),
            ("state listen", "listen"),
            ("src 1.2.3", "1.2.3"),
            ("src 1.2.3.4/33", "1.2.3.4/33"),
            ("(pid 1", "("),
            ("pid 1)", ")"),
            ("pid 1 and", ""),
        ] {
            let error = text.parse::<Filter>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("'{word}' in the filter")), "{text}: {error}");
        }
        assert!("!".repeat(100_000).parse::<Filter>().is_err());
    }
}
