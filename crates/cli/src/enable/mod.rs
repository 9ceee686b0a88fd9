//! `shunpike enable` and `disable`: switched on once, for a service or for all programs of a machine.

mod preload;
mod unit;

use crate::args::Enable;
use crate::error::Error;
use crate::run;
use crate::tools::table::print;
use std::path::{Path, PathBuf};

/// `enable`.
pub fn enable(args: &Enable) -> Result<(), Error> {
    let library = run::library()?;
    let there = below(&args.root, &library);
    if !there.is_file() {
        return Err(Error::NoLibrary { tried: vec![there] });
    }
    if args.all {
        return print(&preload::enable(&args.root, &library)?);
    }
    // All are looked at before the first is changed.
    let units: Vec<unit::Unit> =
        args.units.iter().map(|name| unit::Unit::find(&args.root, name)).collect::<Result<_, _>>()?;
    for unit in &units {
        for doubt in unit.doubts(&args.root) {
            eprintln!("shunpike: {doubt}");
        }
        print(&unit.enable(&args.root, &library)?)?;
    }
    unit::reload(&args.root)
}

/// `disable`.
pub fn disable(args: &Enable) -> Result<(), Error> {
    if args.all {
        return print(&preload::disable(&args.root)?);
    }
    let names: Vec<String> = args.units.iter().map(|name| unit::full_name(name)).collect::<Result<_, _>>()?;
    for name in &names {
        print(&unit::disable(&args.root, name)?)?;
    }
    unit::reload(&args.root)
}

/// Where `path` is in the system below `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
