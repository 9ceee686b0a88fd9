//! What archaven does not tell: that a module itself is imported, or all that is in it; and paths in the arguments and the bodies of macros.
//!
//! A use of another module has `crate::` or `super::` in it somewhere, so these are looked for, wherever they stand.

use crate::Floors;
use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};
use std::fs;
use std::io::{Error, Result};
use std::path::Path;
use walkdir::WalkDir;

/// A crate's uses that look up, each as "file:line: module". Files of tests may use what they like.
pub fn upward(floors: &Floors, source: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(source) {
        let path = entry?.into_path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let inside = path.strip_prefix(source).map_err(Error::other)?.with_extension("");
        let mut module: Vec<_> = inside.iter().filter_map(|part| part.to_str()).collect();
        module.pop_if(|last| *last == "mod");
        if !is_rust || module.contains(&"tests") || module == ["lib"] || module == ["main"] {
            continue;
        }
        let tokens: TokenStream =
            fs::read_to_string(&path)?.parse().map_err(|error: LexError| Error::other(error.to_string()))?;
        let mut uses = Vec::new();
        walk(tokens, module.len(), &mut uses);
        let uses = uses.into_iter().filter(|(to, _)| floors.is_upward(module[0], to));
        found.extend(uses.map(|(to, line)| format!("{}:{line}: {to}", inside.display())));
    }
    Ok(found)
}

/// The root itself is imported, or all that is in it: any module may be used by that.
const ALL: &str = "the whole crate";

/// Puts what is named of the root, each with its line, into `uses`. `depth` is the module's below the root.
fn walk(tokens: TokenStream, depth: usize, uses: &mut Vec<(String, usize)>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        let (above, mut next) = climb(&tokens, at);
        if next == at {
            if let TokenTree::Group(group) = &tokens[at] {
                let is_module =
                    at >= 2 && is(&tokens[at - 2], "mod") && group.delimiter() == Delimiter::Brace;
                walk(group.stream(), depth + usize::from(is_module), uses);
            }
            at += 1;
            continue;
        }
        if above.is_none_or(|above| above == depth) {
            match tokens.get(next) {
                Some(TokenTree::Group(group)) => {
                    let names: Vec<_> = group.stream().into_iter().collect();
                    let firsts = names.split(|token| is(token, ",")).filter_map(<[_]>::first);
                    uses.extend(firsts.map(name));
                    next += 1;
                }
                Some(token) => uses.push(name(token)),
                None => {}
            }
        }
        at = next;
    }
}

/// How many modules up a path goes that begins at `at` (`None`: to the root), and where its first name stands. That is `at` itself: there is no such path.
fn climb(tokens: &[TokenTree], at: usize) -> (Option<usize>, usize) {
    let follows =
        |at: usize| tokens.get(at..at + 2).is_some_and(|two| two.iter().all(|token| is(token, ":")));
    if is(&tokens[at], "crate") {
        let is_renamed = tokens.get(at + 1).is_some_and(|token| is(token, "as"));
        return (None, if follows(at + 1) { at + 3 } else { at + usize::from(is_renamed) });
    }
    let (mut above, mut next) = (0, at);
    while tokens.get(next).is_some_and(|token| is(token, "super")) && follows(next + 1) {
        (above, next) = (above + 1, next + 3);
    }
    (Some(above), next)
}

fn is(token: &TokenTree, text: &str) -> bool {
    !matches!(token, TokenTree::Group(_)) && token.to_string() == text
}

fn name(token: &TokenTree) -> (String, usize) {
    let is_all = ["*", "self", "as"].iter().any(|all| is(token, all));
    (if is_all { ALL.to_owned() } else { token.to_string() }, token.span().start().line)
}
