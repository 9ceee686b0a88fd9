//! `shunpike enable` and `disable`: switched on once, for a service or for all programs of a machine.

mod doubts;
mod preload;
mod turn;
mod unit;

use crate::args::{Disable, Enable};
use crate::error::Error;
use crate::say::say;
use crate::shipped;
use crate::tools::table::{plain, print};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use turn::Turn;

/// `enable`.
pub fn enable(args: &Enable) -> Result<(), Error> {
    let library = shipped::library()?;
    // They mean something in a unit, or to the loader.
    if library.as_os_str().as_bytes().iter().any(|byte| b"#$\"'\\".contains(byte)) {
        return Err(Error::LibraryPath(library));
    }
    let there = below(&args.root, &library);
    if !there.is_file() {
        return Err(shipped::no_library(there));
    }
    if args.all {
        return print(&preload::enable(&args.root, &library)?);
    }
    // All are looked at before the first is changed.
    let units: Vec<unit::Unit> =
        args.units.iter().map(|name| unit::Unit::find(&args.root, name)).collect::<Result<_, _>>()?;
    let turn = Turn::take(&args.root)?;
    for unit in &units {
        for doubt in unit.doubts(&args.root, &library) {
            say(plain(&doubt));
        }
        print(&unit.enable(&args.root, &library)?)?;
    }
    drop(turn);
    unit::reload(&args.root)
}

/// `disable`.
pub fn disable(args: &Disable) -> Result<(), Error> {
    if args.all || args.everything {
        print(&preload::disable(&args.root)?)?;
    }
    let names: Vec<String> = if args.everything {
        unit::enabled(&args.root)
    } else {
        args.units.iter().map(|name| unit::full_name(name)).collect::<Result<_, _>>()?
    };
    if names.is_empty() {
        return Ok(());
    }
    // Where there is nothing to take away, nothing is written, as the system may not let us.
    let is_there = names.iter().any(|name| unit::is_enabled(&args.root, name));
    let turn = is_there.then(|| Turn::take(&args.root)).transpose()?;
    for name in &names {
        print(&unit::disable(&args.root, name)?)?;
    }
    drop(turn);
    unit::reload(&args.root)
}

/// As many links as the kernel follows on one way.
const LINKS: usize = 40;

/// Where `path` is in the system below `root`. Links lead where they lead the programs of that system: never out of it.
fn below(root: &Path, path: &Path) -> PathBuf {
    let words =
        |path: &Path| path.components().rev().map(|word| word.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut found, mut ahead, mut links) = (PathBuf::new(), words(path), 0);
    while let Some(word) = ahead.pop() {
        if word == OsStr::new("/") {
            found.clear();
        } else if word == OsStr::new("..") {
            found.pop();
        } else {
            let link = fs::read_link(root.join(&found).join(&word)).ok().filter(|_| links < LINKS);
            match link {
                Some(to) => {
                    links += 1;
                    ahead.extend(words(&to));
                }
                None => found.push(word),
            }
        }
    }
    root.join(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_leads_out_of_the_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc/real")).expect("directories");
        for (link, to) in [
            ("etc/absolute", "/etc/real"),
            ("etc/relative", "real"),
            ("etc/out", "../../../../outside"),
            ("etc/outside", "/outside"),
            ("etc/endless", "endless"),
            ("up", ".."),
        ] {
            symlink(to, root.join(link)).expect("a link");
        }
        for (path, is_at) in [
            ("/etc/real/x", "etc/real/x"),
            ("/etc/absolute/x", "etc/real/x"),
            ("/etc/relative/x", "etc/real/x"),
            ("/etc/out", "outside"),
            ("/etc/outside/x", "outside/x"),
            ("/up/../etc/absolute", "etc/real"),
            ("/etc/endless", "etc/endless"),
        ] {
            assert_eq!(below(&root, Path::new(path)), root.join(is_at), "{path}");
        }
    }
}
