//! Programs without a libc that the command's children execute: what those are told, and the helper that they begin as this program
//! again (crates/preload/src/children.rs).

use shunpike_inject::attach::{self, Who};
use shunpike_inject::cache::Cache;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The variable that tells programs of this: the helper, the library, and where sites are kept, between colons.
pub const VARIABLE: &str = "SHUNPIKE_INJECT";

/// By this name the helper is begun.
const NAME: &str = "shunpike-patch";
/// What the helper is given: the program's file, and where to say that it is ready.
const FILE: i32 = 3;
const TELL: i32 = 4;

/// The variable's value. `None`: a path has a colon, or the command's own is unknown.
pub fn told(library: &Path, sites: Option<&Path>) -> Option<OsString> {
    let helper = env::current_exe().ok()?;
    let library = std::path::absolute(library).ok()?;
    let parts = [helper.as_os_str(), library.as_os_str(), sites.map_or(OsStr::new(""), Path::as_os_str)];
    let is_plain = parts.iter().all(|part| !part.as_bytes().contains(&b':'));
    is_plain.then(|| parts.join(OsStr::new(":")))
}

/// Whether these are a helper's arguments, which then has done its work.
pub fn helped(arguments: &[OsString]) -> bool {
    let [name, thread, who, library, sites] = arguments else { return false };
    if name != NAME {
        return false;
    }
    let thread = thread.to_str().and_then(|number| number.parse().ok());
    let who = if who == "child" { Who::Child } else { Who::Itself };
    if let Some(thread) = thread {
        help(thread, who, Path::new(library), Path::new(sites));
    }
    true
}

fn help(thread: i32, who: Who, library: &Path, sites: &Path) {
    // What is written to the standard streams, which are closed, must not come to what is opened next.
    let streams = std::array::from_fn::<_, 3, _>(|_| File::open("/").ok());
    if streams.iter().flatten().any(|stream| stream.as_raw_fd() > 2) {
        return;
    }
    // Not of the program's group: nobody who asks who is in that, or sends it signals, sees this process.
    let _ = rustix::process::setsid();
    // SAFETY: given by whoever has begun this process, and used by nothing else.
    let (file, tell) = unsafe { (OwnedFd::from_raw_fd(FILE), OwnedFd::from_raw_fd(TELL)) };
    let cache = Cache::open(sites).ok();
    // There is nobody to be told of a failure: the program runs as it is.
    let _ = attach::attach(thread, who, &File::from(file), library, cache.as_ref(), || {
        let _ = File::from(tell).write_all(b"1");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_colons_are_not_told() {
        let told = |library: &str, sites: Option<&str>| told(Path::new(library), sites.map(Path::new));
        let value = told("/l/entry.so", Some("/run/sites")).expect("plain paths");
        assert_eq!(value.as_bytes().split(|byte| *byte == b':').count(), 3);
        assert!(value.as_bytes().ends_with(b":/l/entry.so:/run/sites"));
        assert!(told("/l/entry.so", None).is_some_and(|value| value.as_bytes().ends_with(b"entry.so:")));
        assert_eq!(told("/l:/entry.so", None), None);
    }

    #[test]
    fn only_a_helper_helps() {
        assert!(!helped(&["shunpike".into(), "run".into(), "child".into(), "true".into(), "x".into()]));
        assert!(!helped(&[NAME.into()]));
    }
}
