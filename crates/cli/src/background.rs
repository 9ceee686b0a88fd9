//! A broker that outlives its starter.

use crate::args::Broker;
use crate::error::Error;
use crate::socket;
use rustix::fs::{MemfdFlags, SealFlags};
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A private broker looks after this long without a session whether anybody is left, seconds.
const IDLE_EXIT: u32 = 10;
/// It takes a few milliseconds to answer; a busy machine is given this long.
const PATIENCE: Duration = Duration::from_secs(3);
/// After the broker that we started has gone because another one was faster, which is about to serve.
const RIVAL: Duration = Duration::from_millis(300);

/// Starts the user's private broker at `path`, for `run`, which leaves once one serves at `successor`; returns when it answers. Errors: one line.
///
/// A process of its own does it, so that CMD, which this process becomes, has no child that it does not know.
pub fn private(path: &Path, settings: &[String], successor: Option<&str>) -> Result<(), String> {
    let program = own_program()?;
    // Where the caller has SIGCHLD ignored, nobody's end can be waited for, by the starter neither. CMD inherits it as it was.
    // SAFETY: `run` has one thread and no handlers: a program that was executed has this signal ignored or by default.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let output = Command::new(program)
        .args(["broker", "--private", "--background", "--idle-exit", &IDLE_EXIT.to_string(), "--socket"])
        .arg(path)
        .args(settings.iter().map(|setting| format!("--set={setting}")))
        .args(successor.map(|path| format!("--yield-to={path}")))
        .stdin(Stdio::null())
        .output();
    // SAFETY: as above; `before` is what was set.
    unsafe { libc::signal(libc::SIGCHLD, before) };
    let output = output.map_err(|error| format!("no private broker could be started: {error}"))?;
    // Another `run` may have been faster.
    if output.status.success() || socket::answers(path) {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let line = message.lines().last().unwrap_or("the starter of the private broker died");
    Err(line.strip_prefix("shunpike: ").unwrap_or(line).to_owned())
}

/// `broker --background`: starts the same command without that option, and waits until it answers. `words` are those of the command line.
pub fn start(words: &[OsString], args: &Broker, named: Option<PathBuf>) -> Result<(), Error> {
    let path = named.unwrap_or_else(|| crate::broker::default_socket(args.private));
    wait_for_broker(words, args, &path).map_err(|reason| Error::Background { socket: path, reason })
}

fn wait_for_broker(words: &[OsString], args: &Broker, path: &Path) -> Result<(), String> {
    if socket::answers(path) {
        return Err("one serves there already, with options of its own".into());
    }
    let program = own_program()?;
    // It must neither hold its starter's descriptors nor get its terminal's signals.
    keep_no_descriptors();
    let _ = rustix::process::setsid();
    let heard = LastWords::new()?;
    let mut broker = Command::new(program)
        .args(words.iter().skip(1).filter(|word| *word != "--background"))
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(heard.writer()?)
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut deadline = Instant::now() + PATIENCE;
    let mut ended = None;
    loop {
        if socket::answers(path) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
        if ended.is_none() {
            ended = broker.try_wait().ok().flatten();
            if let Some(status) = ended {
                let is_other = status.code() == Some(Error::ALREADY_SERVED.into());
                deadline = Instant::now() + if is_other { RIVAL } else { Duration::ZERO };
            }
        }
        sleep(Duration::from_millis(2));
    }
    let why = match (ended, heard.last_line()) {
        (Some(_), Some(line)) => return Err(line),
        (Some(status), None) => format!("it left with {status}"),
        (None, _) => format!("it did not answer within {} s", PATIENCE.as_secs()),
    };
    let private = if args.private { " --private" } else { "" };
    Err(format!("{why}; 'shunpike broker{private} --socket {}' says why", path.display()))
}

/// What a broker writes on its standard error until it answers: in memory that it has to itself, so that nobody needs to read it.
struct LastWords(File);

impl LastWords {
    fn new() -> Result<Self, String> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("shunpike-last-words", flags);
        memory.map(|fd| Self(fd.into())).map_err(|errno| format!("no memory for what it says: {errno}"))
    }

    fn writer(&self) -> Result<File, String> {
        self.0.try_clone().map_err(|error| format!("no descriptor for what it says: {error}"))
    }

    fn last_line(&self) -> Option<String> {
        const MOST: usize = 64 << 10;
        let mut text = vec![0; MOST];
        let end = self.0.metadata().ok()?.len();
        // By the place: the writer has the same cursor.
        let read = self.0.read_at(&mut text, end.saturating_sub(MOST as u64)).ok()?;
        let text = String::from_utf8_lossy(text.get(..read)?);
        let line = text.lines().rfind(|line| !line.trim().is_empty())?;
        Some(line.strip_prefix("shunpike: ").unwrap_or(line).to_owned())
    }
}

impl Drop for LastWords {
    /// From now on it takes nothing: the log of a broker that serves for years would fill the memory.
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_add_seals(&self.0, SealFlags::WRITE | SealFlags::GROW);
    }
}

fn own_program() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| Error::Itself(error).to_string())
}

/// Marks every descriptor but the standard ones to be closed by exec.
fn keep_no_descriptors() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: no descriptor is closed now, so nobody's use of one changes; failure (an old kernel) leaves
    // them inherited, which is untidy, not unsound.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}
