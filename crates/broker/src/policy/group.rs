//! The number of a group by its name, asked for within a bound: the broker may wait for the answer.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::fs;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long all groups of a file may take together. At a reload the broker's event loop waits for as long, and no longer.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked whether a process has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// The end of what getent(1) says of a group that there is not.
const NO_SUCH_KEY: i32 = 2;
/// What is read of a group's line: the number comes before the members, who may be many.
const LINE: usize = 4096;

/// Why a group has no number.
#[derive(Debug)]
pub enum NoNumber {
    /// There is no such group.
    NoSuchGroup,
    /// Who knows could not be asked: why.
    NotAsked(String),
}

/// The number of a group. What else than /etc/group the system has (LDAP, systemd), getent(1) asks: a libc's own functions do that without
/// a bound, or, linked into the command, not at all.
pub fn number(name: &str, until: Instant) -> Result<u32, NoNumber> {
    // Neither is a name; getent would take the first for an option.
    if name.is_empty() || name.starts_with('-') || name.contains('\0') {
        return Err(NoNumber::NoSuchGroup);
    }
    if let Some(gid) = in_file(name) {
        return Ok(gid);
    }
    let mut getent = Command::new("getent");
    // Of the caller's environment nothing is to decide which program that is, or what it loads.
    getent.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["group", name]);
    let line = ask(&mut getent, until)?;
    in_line(&line, name).ok_or_else(|| NoNumber::NotAsked("getent answered nonsense".to_owned()))
}

/// What a program says that knows groups. It is killed where it takes longer.
fn ask(program: &mut Command, until: Instant) -> Result<String, NoNumber> {
    let not_asked = |error: io::Error| NoNumber::NotAsked(format!("getent cannot be run: {error}"));
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = program.spawn().map_err(not_asked)?;
    let said = child.stdout.take().map_or(Ok(Vec::new()), |mut from| read(&mut from, until));
    let status = match said.and_then(|said| Ok((said, ended(&mut child, until)?))) {
        Ok((said, status)) => status.map(|status| (said, status)),
        Err(error) => {
            end(&mut child);
            return Err(not_asked(error));
        }
    };
    match status {
        Some((said, status)) if status.success() => Ok(String::from_utf8_lossy(&said).into_owned()),
        Some((_, status)) if status.code() == Some(NO_SUCH_KEY) => Err(NoNumber::NoSuchGroup),
        Some((_, status)) => Err(NoNumber::NotAsked(format!("getent ended with {status}"))),
        None => {
            end(&mut child);
            Err(NoNumber::NotAsked(format!("getent did not answer within {} s", PATIENCE.as_secs())))
        }
    }
}

/// What comes until it ends or time is up, of which the beginning is kept.
fn read(from: &mut ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let (mut kept, mut piece) = (Vec::new(), [0; LINE]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&*from, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(kept),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match from.read(&mut piece)? {
            0 => return Ok(kept),
            n => kept.extend_from_slice(&piece[..n.min(LINE - kept.len())]),
        }
    }
}

/// How it ended; `None` where it has not when time is up.
fn ended(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        sleep(PAUSE);
    }
}

/// Kills it. One that even this does not end at once, as it waits for a file system, is left: it must not hold the broker up.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = ended(child, Instant::now() + Duration::from_millis(100));
}

/// `name:password:GID:members`, as group(5) has it.
fn in_line(line: &str, name: &str) -> Option<u32> {
    line.strip_prefix(name)?.strip_prefix(':')?.split(':').nth(1)?.parse().ok()
}

fn in_file(name: &str) -> Option<u32> {
    let groups = fs::read("/etc/group").ok()?;
    String::from_utf8_lossy(&groups).lines().find_map(|line| in_line(line, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    fn soon() -> Instant {
        Instant::now() + PATIENCE
    }

    #[test]
    fn groups_that_getent_tells_of() {
        assert_eq!(in_line("staff@corp:*:70001:ann,bob\n", "staff@corp"), Some(70001));
        for other in ["", "staff:*:1:\n", "staff@corp2:*:1:\n", "staff@corp:*\n", "staff@corp:*:x:\n"] {
            assert_eq!(in_line(other, "staff@corp"), None, "{other}");
        }
        assert_eq!(number("root", soon()).unwrap(), 0);
        for name in ["no such group: 1", "", "-s", "a\0b"] {
            assert!(matches!(number(name, soon()), Err(NoNumber::NoSuchGroup)), "{name}");
        }
    }

    #[test]
    fn who_does_not_answer_is_not_said_to_know_no_such_group() {
        assert_eq!(ask(&mut shell("echo g:x:5:"), soon()).unwrap(), "g:x:5:\n");
        assert!(matches!(ask(&mut shell("exit 2"), soon()), Err(NoNumber::NoSuchGroup)));
        for (script, why) in [("exit 3", "exit status: 3"), ("kill -KILL $$", "signal: 9")] {
            let answer = ask(&mut shell(script), soon());
            assert!(matches!(&answer, Err(NoNumber::NotAsked(text)) if text.contains(why)), "{answer:?}");
        }
        let none = ask(&mut Command::new("/nonexistent/getent"), soon());
        assert!(matches!(&none, Err(NoNumber::NotAsked(text)) if text.contains("cannot be run")), "{none:?}");
    }

    #[test]
    fn who_takes_too_long_is_not_waited_for() {
        for script in ["exec sleep 60", "exec >&-; exec sleep 60", "echo g:x:5:; exec sleep 60"] {
            let began = Instant::now();
            let answer = ask(&mut shell(script), began + Duration::from_millis(200));
            assert!(began.elapsed() < Duration::from_secs(10), "{script}");
            assert!(
                matches!(&answer, Err(NoNumber::NotAsked(text)) if text.contains("within")),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_group_of_many_is_read_whole() {
        let answer = ask(&mut shell("printf g:x:5:; head -c 200000 /dev/zero | tr '\\0' m"), soon()).unwrap();
        assert_eq!((in_line(&answer, "g"), answer.len()), (Some(5), LINE));
    }
}
