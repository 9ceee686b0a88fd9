//! Where brokers listen, and whether one does.

use shunpike_shm::place::Place;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The system-wide broker's socket.
pub const SYSTEM: &str = "/run/shunpike/broker.sock";

/// The variable that tells programs under Shunpike of their broker's socket.
pub const VARIABLE: &str = "SHUNPIKE_SOCKET";

/// The variable that tells them of a broker that they go to as soon as it serves.
pub const PREFERRED: &str = "SHUNPIKE_PREFER";

/// The socket that the option or else the environment names, as a path that holds in any directory. Where `run` has chosen for the
/// time being (there is one to be preferred), nobody has named it.
pub fn named(option: Option<PathBuf>) -> Option<PathBuf> {
    let is_chosen = env::var_os(PREFERRED).is_some_and(|path| !path.is_empty());
    let path = option.or_else(|| env::var_os(VARIABLE).filter(|_| !is_chosen).map(PathBuf::from))?;
    // Fails for the empty path, which names nothing.
    std::path::absolute(path).ok()
}

/// The user's private broker's socket.
pub fn private() -> PathBuf {
    // Of another user's after sudo or su, who could put another directory in the place of ours there.
    match runtime_directory().filter(|dir| is_ours(dir)) {
        Some(dir) => dir.join("shunpike/broker.sock"),
        None => format!("/tmp/shunpike-{}/broker.sock", rustix::process::geteuid().as_raw()).into(),
    }
}

/// A relative one is to be ignored (XDG Base Directory Specification): it would be another one in each directory.
fn runtime_directory() -> Option<PathBuf> {
    env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A place where a broker was looked for.
#[derive(Debug)]
pub struct Tried {
    /// The socket.
    pub path: PathBuf,
    /// Why nothing was heard there: what connecting said, or that it was not tried.
    why: Silence,
}

#[derive(Debug)]
enum Silence {
    Refused(io::Error),
    NotOurs,
}

impl Tried {
    /// Of a socket where no broker was heard.
    pub fn new(path: PathBuf, error: io::Error) -> Self {
        Self { path, why: Silence::Refused(error) }
    }

    /// Whether there may be a broker that this user may not ask.
    pub fn is_forbidden(&self) -> bool {
        matches!(&self.why, Silence::Refused(error) if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Silence::Refused(error) => match error.kind() {
                io::ErrorKind::NotFound => write!(f, "{path} (not there)"),
                io::ErrorKind::ConnectionRefused => write!(f, "{path} (nobody listens)"),
                io::ErrorKind::PermissionDenied => write!(f, "{path} (permission denied)"),
                _ => write!(f, "{path} ({error})"),
            },
            Silence::NotOurs => write!(f, "{path} (not asked: others could have put it there)"),
        }
    }
}

/// What is wrong with XDG_RUNTIME_DIR, which is therefore left aside; `None` where it is used or not set.
pub fn stale_runtime_directory() -> Option<String> {
    let dir = runtime_directory().filter(|dir| !is_ours(dir))?;
    let why = if dir.exists() { "is not yours alone" } else { "is not there" };
    Some(format!("XDG_RUNTIME_DIR={} {why}", dir.display()))
}

/// The socket at which a broker answers: `named`, or else the first of the default ones. Errors: where it was looked for.
pub fn answering(named: Option<PathBuf>) -> Result<PathBuf, Vec<Tried>> {
    let is_named = named.is_some();
    let places = named.map_or_else(|| vec![SYSTEM.into(), private()], |path| vec![path]);
    let mut tried = Vec::new();
    for path in places {
        // Whoever serves this socket is given our connections: it must be ourselves.
        if !is_named && path != Path::new(SYSTEM) && !owned_by_us(&path) {
            tried.push(Tried { path, why: Silence::NotOurs });
            continue;
        }
        match shunpike_broker::who_serves(&path) {
            Ok(_) => return Ok(path),
            Err(error) if is_busy(&error) => return Ok(path),
            Err(error) => tried.push(Tried::new(path, error)),
        }
    }
    Err(tried)
}

/// Whether a broker listens at `path`. Never blocks.
pub fn answers(path: &Path) -> bool {
    shunpike_broker::who_serves(path).map_or_else(|error| is_busy(&error), |_| true)
}

/// Whether somebody listens there whom so many ask that nobody can be added without waiting.
fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Whether nobody else can have put a socket at `path`, because its directory is ours alone. So it is when
/// the directory is still to be made.
pub fn owned_by_us(path: &Path) -> bool {
    let Some(directory) = path.parent() else { return false };
    match fs::symlink_metadata(directory) {
        Ok(_) => is_ours(directory),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether the directory of `path` is there, and ours alone.
pub fn is_in_ours(path: &Path) -> bool {
    path.parent().is_some_and(is_ours)
}

/// Whether a directory is this user's, and nobody else's to write.
fn is_ours(directory: &Path) -> bool {
    let is_alone = |meta: fs::Metadata| {
        meta.is_dir()
            && meta.uid() == rustix::process::geteuid().as_raw()
            && meta.permissions().mode() & 0o022 == 0
    };
    fs::symlink_metadata(directory).is_ok_and(is_alone)
}

/// Whose broker listens at `path`, if it is one to which programs of this user would say nothing.
pub fn foreign(path: &Path) -> Option<String> {
    let uid = shunpike_broker::who_serves(path).ok()?;
    match Place::of(path.as_os_str().as_bytes()) {
        Ok(place) if place.may_serve(uid) => None,
        Ok(_) => Some(format!("uid {uid} serves at {}, who is neither you nor root", path.display())),
        Err(_) => Some(format!(
            "uid {uid} serves at {}, in a directory where others can put a socket",
            path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_is_not_ours() {
        let base = tempfile::tempdir().expect("temporary directory");
        let socket = base.path().join("d/broker.sock");
        assert!(owned_by_us(&socket), "still to be made");
        fs::create_dir(base.path().join("d")).expect("directory");
        for (mode, ours) in [(0o700, true), (0o755, true), (0o777, false), (0o720, false)] {
            fs::set_permissions(base.path().join("d"), fs::Permissions::from_mode(mode)).expect("mode");
            assert_eq!(owned_by_us(&socket), ours, "{mode:o}");
        }
        std::os::unix::fs::symlink(base.path().join("d"), base.path().join("l")).expect("link");
        assert!(!owned_by_us(&base.path().join("l/broker.sock")));
    }

    #[test]
    fn nobody_answers_at_a_file() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        assert!(!answers(file.path()));
        assert!(!answers(Path::new("/nonexistent/broker.sock")));
    }
}
