//! What /proc says of other processes' descriptors.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, getsid};
use rustix::time::ClockId;

use crate::text::Text;
use crate::{clock, sys};

/// As many numbers are asked for one by one; of more, the list of all processes is faster.
const FEW: u32 = 1024;
/// So much of the thread's time a look takes at most: some 200 processes. Time in which others run is none of it, or a look would never
/// come to its end on a busy machine,
const MOST: Duration = Duration::from_millis(3);
/// A look takes so much time at most, others' included, microseconds.
const MOST_US: u64 = 100_000;

fn directory(path: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn target<'a>(at: &OwnedFd, name: &CStr, room: &'a mut [MaybeUninit<u8>]) -> Option<&'a [u8]> {
    rustix::fs::readlinkat_raw(at, name, room).ok().map(|(target, _)| &*target)
}

/// Whether process `pid` has the socket with this inode open; `None` where that is not told.
pub fn holds_socket(pid: u32, inode: u64) -> Option<bool> {
    let descriptors = match directory(Text::new(format_args!("/proc/{pid}/fd")).as_bytes()) {
        Ok(descriptors) => descriptors,
        // Gone, unless it is only hidden (hidepid).
        Err(Errno::NOENT) => return (!sys::is_process(pid)).then_some(false),
        Err(_) => return None,
    };
    match is_among(&descriptors, inode) {
        // Of a process whose first thread has ended the list is empty, whatever the others have.
        Listed::Nothing if has_other_threads(pid)? => None,
        Listed::Nothing | Listed::Others => Some(false),
        Listed::It => Some(true),
        Listed::Unknown => None,
    }
}

/// What a process's list of descriptors has.
#[derive(PartialEq, Eq, Debug)]
enum Listed {
    /// The socket.
    It,
    /// Others.
    Others,
    /// None.
    Nothing,
    /// That cannot be read.
    Unknown,
}

/// Whether a process whose first thread has ended has others. `None`: not known.
fn has_other_threads(pid: u32) -> Option<bool> {
    let path = Text::new(format_args!("/proc/{pid}/stat"));
    let mut bytes = [0; 1024];
    let stat = rustix::fs::open(path.as_bytes(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = match stat.and_then(|stat| rustix::io::read(&stat, &mut bytes)) {
        Ok(read) => read,
        Err(Errno::NOENT | Errno::SRCH) => return Some(false),
        Err(_) => return None,
    };
    // `PID (NAME) STATE ...`, where the name may have anything in it; the 20th field is the number of threads.
    let text = bytes.get(..read)?;
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = core::str::from_utf8(text.get(name_end + 1..)?).ok()?.split_ascii_whitespace();
    let has_ended = fields.next()? == "Z";
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    Some(has_ended && threads > 1)
}

/// What of the socket with this inode a process's list of descriptors says.
fn is_among(descriptors: &OwnedFd, inode: u64) -> Listed {
    let mut listed = Listed::Nothing;
    let wanted = Text::new(format_args!("socket:[{inode}]"));
    let mut room = [MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(descriptors, &mut room);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            // It has ended meanwhile. The next look would say so again, for ever.
            Err(Errno::NOENT | Errno::SRCH) => return Listed::Nothing,
            Err(_) => return Listed::Unknown,
        };
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        listed = Listed::Others;
        let mut link = [MaybeUninit::<u8>::uninit(); 64];
        if target(descriptors, entry.file_name(), &mut link) == Some(wanted.as_bytes()) {
            return Listed::It;
        }
    }
    listed
}

/// Whether /proc is the one of this process's own numbers.
pub fn is_ours() -> bool {
    let mut link = [MaybeUninit::<u8>::uninit(); 64];
    let own = Text::new(format_args!("{}", sys::pid()));
    rustix::fs::readlinkat_raw(CWD, c"/proc/self", &mut link[..])
        .is_ok_and(|(link, _)| *link == *own.as_bytes())
}

/// Whether no process that was made after `first` has the socket, as far as we may look; those of other sessions into which
/// we may not are not asked. False also where they are too many.
pub fn none_since_holds(first: u32, inode: u64) -> bool {
    let own = sys::pid();
    let (until, at_last) = (own_time() + MOST, clock::ticks() + clock::from_us(MOST_US));
    let is_too_long = || own_time() > until || clock::ticks() > at_last;
    let holds = |pid: u32| {
        if pid == own {
            return false;
        }
        is_too_long() || holds_socket(pid, inode).unwrap_or_else(|| is_of_our_session(pid))
    };
    let Some(last) = last_made() else { return false };
    if (first..first.saturating_add(FEW)).contains(&last) {
        return !(first + 1..=last).any(|pid| sys::is_process(pid) && holds(pid));
    }
    let is_since = |pid: u32| if first <= last { (first + 1..=last).contains(&pid) } else { true };
    let looked =
        each(
            |pid| {
                if is_since(pid) && holds(pid) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
    looked == Some(ControlFlow::Continue(()))
}

/// What the calling thread has run.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn is_of_our_session(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| getsid(Some(pid)).ok() == getsid(None).ok())
}

/// The number that was last given to a process or thread.
pub fn last_made() -> Option<u32> {
    let file = rustix::fs::open(c"/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 128];
    let read = rustix::io::read(&file, &mut bytes[..]).ok()?;
    core::str::from_utf8(&bytes[..read]).ok()?.split_ascii_whitespace().last()?.parse().ok()
}

/// Calls `look` with every process until it breaks. `None` without /proc.
fn each(mut look: impl FnMut(u32) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
    let all = directory(b"/proc").ok()?;
    let mut room = [MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&all, &mut room);
    while let Some(entry) = entries.next() {
        let pid = entry.ok()?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(pid) = pid
            && look(pid).is_break()
        {
            return Some(ControlFlow::Break(()));
        }
    }
    Some(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    fn inode(socket: &TcpListener) -> u64 {
        rustix::fs::fstat(socket).expect("a socket").st_ino
    }

    #[test]
    fn a_process_that_ends_while_it_is_looked_at_holds_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        let path = format!("/proc/{}/fd", child.id());
        let descriptors = directory(path.as_bytes()).expect("its descriptors");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(is_among(&descriptors, 1), Listed::Nothing);
    }

    #[test]
    fn a_child_that_inherits_a_socket_is_found_and_one_that_does_not_is_not() {
        assert!(is_ours());
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let (own, wanted) = (std::process::id(), inode(&socket));
        assert_eq!(holds_socket(own, wanted), Some(true));
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("a shell")
        };
        let mut without = start("read line");
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).expect("inherited");
        // A grandchild, as the shell has one more command to come.
        let mut with = start("sh -c 'echo $$; read line'; true");
        let mut line = String::new();
        let out = with.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
        let grandchild: u32 = line.trim().parse().expect("a number");
        assert_eq!(holds_socket(without.id(), wanted), Some(false));
        assert_eq!(holds_socket(grandchild, wanted), Some(true));
        assert!(!none_since_holds(with.id(), wanted));
        drop((with.stdin.take(), without.stdin.take()));
        with.wait().and_then(|_| without.wait()).expect("they end");
        assert_eq!(holds_socket(with.id(), wanted), Some(false), "gone");
        // Others may have inherited it, of tests that run beside this one; on a busy machine it does not know.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !none_since_holds(with.id(), wanted) {
            assert!(std::time::Instant::now() < until, "nobody has it");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
