//! Answers for system calls of the library's own, which a filter in the processes under test asks about: most pass.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::errors::{Failure, Own};
use crate::op::Side;

/// include/uapi/linux/seccomp.h
const RECV: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const CONTINUE: u32 = 1;
/// Where the data word is in a struct epoll_event.
const EVENT_DATA: u64 = if cfg!(target_arch = "x86_64") { 4 } else { 8 };

/// What the library has the kernel tell it of a connection on a lane.
const OF_A_LANE: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32;

/// Calls that failed, in all.
static FAILED: [AtomicU64; Own::ALL.len()] = [const { AtomicU64::new(0) }; Own::ALL.len()];

/// How many of each kind failed, in all.
pub fn failed() -> String {
    let all = Own::ALL.iter().zip(&FAILED).map(|(own, n)| format!("{own:?} {}", n.load(Ordering::Relaxed)));
    all.collect::<Vec<_>>().join(", ")
}

/// What fails in the processes of a side, and how many calls of each kind they have made.
pub struct Plan {
    failures: Vec<Failure>,
    made: Mutex<[u16; Own::ALL.len()]>,
}

impl Plan {
    pub fn new(failures: &[Failure], side: Side) -> Arc<Self> {
        let failures = failures.iter().copied().filter(|failure| failure.side == side).collect();
        Arc::new(Self { failures, made: Mutex::new([0; Own::ALL.len()]) })
    }

    /// One more call: its error, if it is to fail.
    fn next(&self, own: Own) -> Option<i32> {
        let nth = {
            let mut made = self.made.lock().expect("whoever holds it does not panic");
            let nth = made[own as usize];
            made[own as usize] = nth.saturating_add(1);
            nth
        };
        let is_meant = |failure: &&Failure| {
            failure.call == own
                && (failure.nth..=failure.nth.saturating_add(failure.times - 1)).contains(&nth)
        };
        let failure = self.failures.iter().find(is_meant)?;
        FAILED[own as usize].fetch_add(1, Ordering::Relaxed);
        Some(failure.errno)
    }
}

/// What is known of the processes that ask.
#[derive(Default)]
struct Known {
    /// Sockets by their inodes: whether they are UNIX ones.
    sockets: HashMap<u64, bool>,
    /// Sets and descriptors of exclusive entries that were refused: the library offers them again as the program made them.
    owed: HashSet<[u64; 2]>,
}

impl Known {
    fn note_entry(&mut self, asked: &libc::seccomp_notif, is_refused: bool) {
        let entry = [asked.data.args[0], asked.data.args[2]];
        if is_refused {
            self.owed.insert(entry);
        } else {
            self.owed.remove(&entry);
        }
    }
}

/// Answers until all processes with the filter have ended.
pub fn serve(listener: &OwnedFd, plan: &Plan) {
    let mut known = Known::default();
    loop {
        let mut one = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut one, 1, -1) };
        if ready < 0 && Error::last_os_error().raw_os_error() == Some(libc::EINTR) {
            continue;
        }
        if ready < 0 || one.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: an all-zero one is what the kernel asks for.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure of this request, which lives through the call.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECV, &raw mut asked) } != 0 {
            match Error::last_os_error().raw_os_error() {
                // Whoever asked has been killed.
                Some(libc::ENOENT | libc::EINTR) => continue,
                _ => return,
            }
        }
        let own = own(&asked, &mut known);
        let errno = own.and_then(|own| plan.next(own));
        if own == Some(Own::Entry) {
            known.note_entry(&asked, errno.is_some());
        }
        let mut answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: -errno.unwrap_or(0),
            flags: if errno.is_some() { 0 } else { CONTINUE },
        };
        // SAFETY: as above. An error: whoever asked has been killed.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut answer) };
    }
}

/// Which call it is, if it is the library's own and not one that it makes for the program.
fn own(asked: &libc::seccomp_notif, known: &mut Known) -> Option<Own> {
    let args = asked.data.args;
    let name = |fd: u64| std::fs::read_link(format!("/proc/{}/fd/{fd}", asked.pid)).ok();
    match i64::from(asked.data.nr) {
        libc::SYS_epoll_ctl if args[1] == libc::EPOLL_CTL_ADD as u64 => {
            let is_bell = name(args[2])?.to_str() == Some("anon_inode:[eventfd]");
            if is_bell {
                return Some(Own::Bell);
            }
            if known.owed.contains(&[args[0], args[2]]) {
                return Some(Own::Entry);
            }
            let (mut events, mut data) = ([0; 4], [0; 8]);
            let memory = File::open(format!("/proc/{}/mem", asked.pid)).ok()?;
            memory.read_exact_at(&mut events, args[3]).ok()?;
            memory.read_exact_at(&mut data, args[3] + EVENT_DATA).ok()?;
            let data = u64::from_le_bytes(data);
            // With a tag of the library's, and for all that TCP has to tell: with a tag alone it is the program's call, or a look.
            (data >> 62 == 0b10 && u32::from_le_bytes(events) == OF_A_LANE).then_some(Own::Entry)
        }
        libc::SYS_epoll_create1 => Some(Own::NewSet),
        libc::SYS_eventfd2 => Some(Own::NewBell),
        libc::SYS_memfd_create => Some(Own::Memfd),
        libc::SYS_mmap if args[3] & libc::MAP_SHARED as u64 != 0 => Some(Own::Map),
        libc::SYS_sendmsg | libc::SYS_recvmsg => {
            let inode = name(args[0])?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            let is_unix = || is_unix_socket(asked.pid, inode);
            let sends = i64::from(asked.data.nr) == libc::SYS_sendmsg;
            let own = if sends { Own::Tell } else { Own::Hear };
            known.sockets.entry(inode).or_insert_with(is_unix).then_some(own)
        }
        libc::SYS_getsockopt => match (args[1] as i32, args[2] as i32) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Some(Own::TcpInfo),
            (libc::SOL_SOCKET, libc::SO_COOKIE) => Some(Own::Cookie),
            _ => None,
        },
        libc::SYS_ioctl if args[1] == libc::FIONREAD => Some(Own::Unread),
        _ => None,
    }
}

fn is_unix_socket(pid: u32, inode: u64) -> bool {
    let all = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let inode = inode.to_string();
    all.lines().any(|line| line.split_whitespace().nth(6) == Some(&inode))
}
