//! Where a broker's policy is read from.

use shunpike_broker::policy::{Policy, SYSTEM_FILE, Source};
use std::env;
use std::path::{Path, PathBuf};

/// Where the policy is read from: the file named, else the one at the usual place. It is found again later, whatever the working
/// directory is by then.
pub fn source(named: Option<PathBuf>, private: bool, built_in: Policy) -> Source {
    let named = named.map(|path| std::path::absolute(&path).unwrap_or(path));
    let is_named = named.is_some();
    let usual = || {
        if !private {
            return Some(SYSTEM_FILE.into());
        }
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
        let directory = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(directory.or_else(home)?.join("shunpike/broker.toml"))
    };
    Source { path: named.or_else(usual), is_named, private, built_in }
}
