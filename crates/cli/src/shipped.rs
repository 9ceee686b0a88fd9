//! The files that come with the command: beside it, where they are built, or where `make install` puts them.

use crate::error::Error;
use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libshunpike.so";
const LIBRARY_VARIABLE: Option<&str> = Some("SHUNPIKE_LIB");

/// The library to preload: SHUNPIKE_LIB, or beside this program, or in ../lib.
pub fn library() -> Result<PathBuf, Error> {
    let found = find(LIBRARY, "lib", LIBRARY_VARIABLE)?;
    let bytes = found.as_os_str().as_bytes();
    if !found.is_absolute() || bytes.iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(Error::LibraryPath(found));
    }
    Ok(found)
}

/// The error that the library to preload is not at `place`.
pub fn no_library(place: PathBuf) -> Error {
    Error::NotShipped { name: LIBRARY, variable: LIBRARY_VARIABLE, tried: vec![place] }
}

/// The library to load into programs without a libc: SHUNPIKE_ENTRY, or beside this program, or in ../lib/shunpike.
pub fn entry() -> Result<PathBuf, Error> {
    find("libshunpike-entry.so", "lib/shunpike", Some("SHUNPIKE_ENTRY"))
}

/// The load programs of `bench`: beside this program, or in ../lib/shunpike.
pub fn load() -> Result<PathBuf, Error> {
    find("shunpike-load", "lib/shunpike", None)
}

/// The file `name`: what the variable names, or beside this program, or in `place` of its prefix.
fn find(name: &'static str, place: &str, variable: Option<&'static str>) -> Result<PathBuf, Error> {
    let named = variable.and_then(env::var_os).filter(|path| !path.is_empty());
    let tried = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let program = env::current_exe().map_err(Error::Itself)?;
            let beside = program.parent().unwrap_or(Path::new("/"));
            vec![beside.join(name), beside.parent().unwrap_or(beside).join(place).join(name)]
        }
    };
    tried.iter().find(|path| path.is_file()).cloned().ok_or(Error::NotShipped { name, variable, tried })
}
