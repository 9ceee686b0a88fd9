//! The floors of ARCHITECTURE.md, as a rule that the modules of each crate are checked against.
//!
//! A table has a crate's floors, the highest first. A module uses those of the floors below its own, and those that stand before it in its own
//! row: so there is no circle. archaven finds what a module uses, by syntax: imports and paths. What it does not tell is found in the tokens ([`tokens`]).

pub mod tokens;

use archaven::{Access, Rule};
use std::collections::HashMap;

/// The floors of one crate: where each module stands, counted from the lowest.
pub struct Floors(HashMap<String, usize>);

impl Floors {
    /// Those of `name`, by the first table behind the heading "### `name`". `None`: there is none, or a module stands there twice.
    pub fn of(name: &str, architecture: &str) -> Option<Self> {
        let (_, text) = architecture.split_once(&format!("### {name}\n"))?;
        let rows =
            text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let cells = rows.skip(2).filter_map(|row| row.trim_matches('|').split('|').nth(1));
        let floors: Vec<Vec<&str>> = cells.map(|cell| cell.split(',').map(str::trim).collect()).collect();
        let mut places = HashMap::new();
        for module in floors.into_iter().rev().flatten() {
            let place = places.len();
            if places.insert(module.to_owned(), place).is_some() {
                return None;
            }
        }
        Some(Self(places))
    }

    /// No module uses an item of one that stands above it. A path of one segment may be a variable of a module's name.
    pub fn rule(&self) -> Rule {
        let mut rule = Rule::new().named("floors").ignore_files(["**/tests.rs", "**/tests/**"]);
        for (module, place) in &self.0 {
            let above = self.0.iter().filter(|(_, other)| *other > place);
            let above: Vec<String> = above.map(|(other, _)| format!("{other}::**")).collect();
            for from in [module.clone(), format!("{module}::**")].into_iter().filter(|_| !above.is_empty()) {
                let why = "it stands above, or behind it in its row of ARCHITECTURE.md";
                rule = rule.deny(Access::from(from).to_any(above.clone()).because(why));
            }
        }
        rule
    }

    /// Whether `to` stands above `from`. What is in none of the modules is in the crate's root, which stands above all.
    pub fn is_upward(&self, from: &str, to: &str) -> bool {
        self.0.get(to).is_none_or(|to| self.0.get(from).is_some_and(|from| from < to))
    }

    /// Modules that stand nowhere, or stand there and are none.
    pub fn differing<'a>(&'a self, modules: &'a [String]) -> impl Iterator<Item = &'a String> {
        let unknown = modules.iter().filter(|module| !self.0.contains_key(*module));
        unknown.chain(self.0.keys().filter(|module| !modules.contains(module)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archaven::Archaven;
    use std::fs;
    use std::path::{Path, PathBuf};

    const CRATES: [&str; 7] = ["shm", "core", "preload", "broker", "bench", "inject", "cli"];

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn architecture() -> String {
        fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it is there")
    }

    /// The modules of a crate's root.
    fn modules(source: &Path) -> Vec<String> {
        let entries = fs::read_dir(source).expect("a directory").flatten();
        let names = entries.filter_map(|entry| {
            let path = entry.path();
            let is_module = path.is_dir() && path.join("mod.rs").exists()
                || path.extension().is_some_and(|extension| extension == "rs");
            is_module.then(|| path.file_stem()?.to_str().map(str::to_owned)).flatten()
        });
        names.filter(|name| name != "lib" && name != "main").collect()
    }

    #[test]
    fn each_module_uses_only_what_stands_below_it() {
        let architecture = architecture();
        for name in CRATES {
            let source = root().join("crates").join(name).join("src");
            let floors =
                Floors::of(name, &architecture).unwrap_or_else(|| panic!("{name} has one table of floors"));
            let modules = modules(&source);
            let differing: Vec<_> = floors.differing(&modules).collect();
            assert!(differing.is_empty(), "{name}: in ARCHITECTURE.md or in src, not in both: {differing:?}");
            let found = Archaven::new().rule(floors.rule()).check(&source).expect("it can be read");
            assert!(found.is_empty(), "{name}:\n{found}");
            let upward = tokens::upward(&floors, &source).expect("it can be read");
            assert!(upward.is_empty(), "{name}: {upward:#?}");
        }
    }

    /// That each way to use a module is seen.
    #[test]
    fn an_arrow_upward_is_found() {
        let text = "### x\n\n| floor | modules |\n|---|---|\n| high | high |\n| low | low, beside |\n";
        let directory = tempfile::tempdir().expect("a directory");
        for (low, is_upward) in [
            ("use crate::high::f;", true),
            ("use crate::{high::f};", true),
            ("use super::high; fn g() { high::f() }", true),
            ("use crate::high as h; fn g() { h::f() }", true),
            ("fn g() { let high = 1; high }", false),
            ("fn g() { crate::high::f() }", true),
            ("fn g(_: crate::high::T) {}", true),
            ("mod inner { use crate::high::f; }", true),
            ("use crate::beside::f;", true),
            ("use std::fmt;", false),
            ("use crate::high;", true),
            ("use crate::high::*;", true),
            ("use crate::{beside as b, fmt};", true),
            ("use crate as c; fn g() { c::high::f() }", true),
            ("use crate::{self as c};", true),
            ("use super::*;", true),
            ("use super::{high};", true),
            ("fn g() { assert!(crate::high::f()); }", true),
            ("macro_rules! g { () => { $crate::high::f() } }", true),
            ("mod inner { use super::super::high::f; }", true),
            ("mod inner { use super::*; use super::inner::f; }", false),
            ("pub(crate) fn g() { let x = [crate::beside::C]; }", true),
            ("use crate::Item;", true),
            ("mod inner { use super::Item; pub(crate) fn g() {} }", false),
        ] {
            for (name, code) in [
                ("high", "use crate::low::f; use crate::beside::f;"),
                ("low", low),
                ("beside", "use crate::low::f;"),
            ] {
                fs::write(directory.path().join(name).with_extension("rs"), code).expect("a file");
            }
            let floors = Floors::of("x", text).expect("a table");
            let found = Archaven::new().rule(floors.rule()).check(&directory).expect("it can be read");
            let upward = tokens::upward(&floors, directory.path()).expect("it can be read");
            assert_eq!(!found.is_empty() || !upward.is_empty(), is_upward, "{low}: {found} {upward:?}");
        }
    }
}
