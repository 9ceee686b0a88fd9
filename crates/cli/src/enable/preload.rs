//! All programs of a machine: a line in /etc/ld.so.preload, and the list of what is on.
//!
//! The loader reads that file as each program starts. So it is replaced as a whole, and not before the library was seen to load.

use super::below;
use super::turn::Turn;
use crate::error::{Error, Unsafe};
use crate::{program, replace};
use shunpike_wire::enabled::{self, Program};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the loader loads into every program.
const PRELOAD: &str = "/etc/ld.so.preload";

const NEW_LIST: &str = "\
# What is under Shunpike where the library is in every program ('shunpike enable --all'). A line for each thing, as
#   off program sshd          by name, by whole path, or * for any
#   off user 33               who starts it, by number
#   off port 5432             at either end of a connection; or 8000-8099
# What is off is off. Where lines have something of a kind on, nothing else of that kind is.
# A list that cannot be understood has nothing on: 'shunpike enable --all' checks it.
on program *
";

/// Puts `library` into every program that starts below `root`; what to tell of it.
pub fn enable(root: &Path, library: &Path) -> Result<String, Error> {
    let (preload, list) = (below(root, Path::new(PRELOAD)), list(root));
    check_loader(root)?;
    replace::check(&preload)?;
    read(&preload)?;
    check_list(&list)?;
    check_owners(root, library)?;
    check_readers(root, library)?;
    check_readers(root, Path::new(OsStr::from_bytes(enabled::PATH.to_bytes())))?;
    check_loads(root, library)?;
    let _turn = Turn::take(root)?;
    if !list.exists() {
        replace::replace(&list, NEW_LIST.as_bytes())?;
    }
    change(&preload, |before| with(before, library.as_os_str().as_bytes()))?;
    Ok(format!(
        "{} has {}: programs that start from now on are under Shunpike, where {} has them on",
        preload.display(),
        library.display(),
        list.display()
    ))
}

/// Takes it out again.
pub fn disable(root: &Path) -> Result<String, Error> {
    let preload = below(root, Path::new(PRELOAD));
    // Where there is nothing to change, none is waited for, and nothing is written.
    let is_there = without(&read(&preload)?).is_some();
    let _turn = is_there.then(|| Turn::take(root)).transpose()?;
    if !is_there || !change(&preload, without)? {
        return Ok(format!("{} has no library of Shunpike's", preload.display()));
    }
    let list = list(root);
    let stays = if list.exists() { format!("; {} stays", list.display()) } else { String::new() };
    Ok(format!("{} has no library of Shunpike's any more{stays}", preload.display()))
}

/// Makes of the file's content another one, `None` for none; no file where that is empty. Whether it did. By who has the turn.
fn change(path: &Path, to: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<bool, Error> {
    replace::check(path)?;
    let Some(after) = to(&read(path)?) else { return Ok(false) };
    if after.trim_ascii().is_empty() {
        replace::remove(path)?;
    } else {
        replace::replace(path, &after)?;
    }
    Ok(true)
}

fn list(root: &Path) -> PathBuf {
    below(root, Path::new(OsStr::from_bytes(enabled::PATH.to_bytes())))
}

/// The file's content; nothing where it is not there.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|source| Error::Read { path: path.to_owned(), source }),
    }
}

/// A list that is there has to be one.
fn check_list(path: &Path) -> Result<(), Error> {
    // A link that leads nowhere is one.
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if !path.is_file() {
        return Err(Error::List { path: path.to_owned(), line: 0, why: "it is no ordinary file" });
    }
    let any = Program { paths: [b"", b""], user: 0 };
    enabled::is_on(&read(path)?, &any).map(drop).map_err(|broken| Error::List {
        path: path.to_owned(),
        line: broken.line,
        why: broken.why,
    })
}

/// musl's loader does not read the file.
fn check_loader(root: &Path) -> Result<(), Error> {
    let loader = program::loader(&below(root, Path::new("/bin/sh"))).unwrap_or_default();
    if loader.to_string_lossy().contains("/ld-musl-") { Err(Error::Musl) } else { Ok(()) }
}

/// The file and the directories above it, as far as they are there: where it lies, and by its name. That may be a link, in a directory
/// where somebody can put another one.
fn on_the_way(root: &Path, file: &Path) -> Vec<PathBuf> {
    let real = fs::canonicalize(below(root, file)).unwrap_or_default();
    let around = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let named = file.ancestors().map(|path| below(root, path));
    let all = real.ancestors().take_while(|path| path.starts_with(&around)).map(Path::to_owned).chain(named);
    all.filter(|path| path.exists()).collect()
}

/// Programs of all users read the library and the list. Who cannot is told so by the loader as each of its programs starts.
fn check_readers(root: &Path, file: &Path) -> Result<(), Error> {
    for path in on_the_way(root, file) {
        let there = fs::metadata(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let (wanted, right) = if there.is_dir() { (0o001, 'x') } else { (0o004, 'r') };
        if there.permissions().mode() & wanted == 0 {
            return Err(Error::NotForAll { file: below(root, file), path, right });
        }
    }
    Ok(())
}

/// Whoever can write the library, or put another one in its place, would be in every program of the machine.
fn check_owners(root: &Path, library: &Path) -> Result<(), Error> {
    let real = below(root, library);
    for path in on_the_way(root, library) {
        let there = fs::metadata(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        if there.uid() != 0 || there.permissions().mode() & 0o022 != 0 {
            let why = if there.uid() == 0 { Unsafe::Writable } else { Unsafe::Owner(there.uid()) };
            return Err(Error::UnsafeLibrary { library: real.clone(), path, why });
        }
    }
    Ok(())
}

/// Has a program load the library, before all of them do. Nothing may come of it, not even a word of the loader's. What lies below
/// another root is somebody else's, perhaps, and not to be run here: it has to be the very library of this command, which is.
fn check_loads(root: &Path, library: &Path) -> Result<(), Error> {
    let there = below(root, library);
    let read = |path: &Path| fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source });
    if root != Path::new("/") && read(&there)? != read(library)? {
        return Err(Error::LibraryDiffers { library: there, own: library.to_owned() });
    }
    let tried = Command::new("/bin/sh").args(["-c", ":"]).env_clear().env("LD_PRELOAD", library).output();
    let why = match tried {
        Ok(output) if output.status.success() && output.stderr.is_empty() => return Ok(()),
        Ok(output) => format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => error.to_string(),
    };
    Err(Error::LibraryFails { library: library.to_owned(), why })
}

fn is_ours(name: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(name)).file_name() == Some(OsStr::new("libshunpike.so"))
}

/// The libraries that a line names, as the loader reads it, and its comment.
fn names(line: &[u8]) -> (impl Iterator<Item = &[u8]>, &[u8]) {
    let (names, comment) = line.split_at(line.iter().position(|byte| *byte == b'#').unwrap_or(line.len()));
    (names.split(|byte| b" \t:".contains(byte)).filter(|name| !name.is_empty()), comment)
}

/// The file with `library` behind what is in it; `None` where that is there.
fn with(text: &[u8], library: &[u8]) -> Option<Vec<u8>> {
    let ours = |line| names(line).0.filter(|name| is_ours(name));
    let mut there = text.split(|byte| *byte == b'\n').flat_map(ours);
    if there.next() == Some(library) && there.next().is_none() {
        return None;
    }
    let mut text = without(text).unwrap_or_else(|| text.to_vec());
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(library);
    text.push(b'\n');
    Some(text)
}

/// The file without any library of ours, and else as it was; `None` where there is none.
fn without(text: &[u8]) -> Option<Vec<u8>> {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut found = false;
    for line in text.split(|byte| *byte == b'\n') {
        if !names(line).0.any(is_ours) {
            kept.push(line.to_vec());
            continue;
        }
        found = true;
        let (names, comment) = names(line);
        let mut others = names.filter(|name| !is_ours(name)).collect::<Vec<_>>().join(&b' ');
        if !others.is_empty() && !comment.is_empty() {
            others.push(b' ');
        }
        others.extend(comment);
        if !others.is_empty() {
            kept.push(others);
        }
    }
    found.then(|| kept.join(&b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_preload_stays_as_it_is() {
        const OURS: &str = "/usr/lib/libshunpike.so";
        for (before, during, after) in [
            ("", "/usr/lib/libshunpike.so\n", ""),
            ("/a.so\n", "/a.so\n/usr/lib/libshunpike.so\n", "/a.so\n"),
            ("# x\n/a.so:/b.so", "# x\n/a.so:/b.so\n/usr/lib/libshunpike.so\n", "# x\n/a.so:/b.so\n"),
        ] {
            let enabled = with(before.as_bytes(), OURS.as_bytes()).expect("changed");
            assert_eq!(String::from_utf8_lossy(&enabled), during);
            assert_eq!(with(&enabled, OURS.as_bytes()), None, "once is enough");
            assert_eq!(String::from_utf8_lossy(&without(&enabled).expect("changed")), after);
            assert_eq!(without(after.as_bytes()), None);
        }
    }

    #[test]
    fn one_of_another_place_goes_and_comments_name_nothing() {
        let old = b"/opt/lib/libshunpike.so /a.so # ours first\n";
        assert_eq!(
            with(old, b"/l/libshunpike.so").expect("changed"),
            b"/a.so # ours first\n/l/libshunpike.so\n"
        );
        assert_eq!(without(b"# /l/libshunpike.so\n"), None);
        assert_eq!(without(b"/l/libshunpike.so.old\n"), None);
    }

    #[test]
    fn the_list_that_is_made_is_one() {
        let any = Program { paths: [b"/usr/bin/x", b""], user: 1000 };
        assert!(enabled::is_on(NEW_LIST.as_bytes(), &any).expect("understood").is_some());
    }
}
