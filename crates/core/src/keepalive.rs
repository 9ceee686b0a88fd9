//! TCP carries nothing while both lanes of a connection are open, and what forwards it forgets what is silent: a NAT or a firewall
//! (conntrack) answers the first segment after that with a reset, or drops it. So TCP's own keepalive probes go out meanwhile.
//!
//! The settings are the socket's, so the program would see ours. Each look of its own at one of them finds its own
//! ([`aside`]), and it has them back when the lanes are over. A peer that does not answer ends the connection no earlier than by them.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shunpike_shm::lifecycle::Phase;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use shunpike_shm::arena::Block;

use crate::table::Conn;
use crate::{clock, sys};

/// Idle time before a probe where it is not known who forwards the segments, seconds. Clouds forget a connection after 240 s or more, home
/// routers after 60 s: two probes may be lost in that.
const UNKNOWN: u32 = 20;
/// Probes within the time after which it is known that a connection is forgotten.
const PROBES: u32 = 3;
/// The longest time that the kernel takes for TCP_KEEPIDLE and TCP_KEEPINTVL, seconds, and the most probes (MAX_TCP_KEEPIDLE and its kin,
/// include/net/tcp.h).
const LONGEST: u32 = 32767;
const MOST: u32 = 127;
/// What this network namespace tracks is asked again after this long, microseconds.
const ASK_US: u64 = 5_000_000;
/// What was found: no connection is tracked.
const UNTRACKED: u32 = u32::MAX;

static TRACKED: AtomicU32 = AtomicU32::new(UNTRACKED);
static ASK_AT: AtomicU64 = AtomicU64::new(0);

/// A socket's settings: SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Settings {
    on: bool,
    idle: u32,
    interval: u32,
    count: u32,
}

impl Settings {
    /// `None`: some of them could not be set again.
    fn of(fd: i32) -> Option<Self> {
        let tcp = |name, most| {
            sys::option::<u32>(fd, libc::IPPROTO_TCP, name).ok().filter(|value| (1..=most).contains(value))
        };
        Some(Self {
            on: sys::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE).ok()? != 0,
            idle: tcp(libc::TCP_KEEPIDLE, LONGEST)?,
            interval: tcp(libc::TCP_KEEPINTVL, LONGEST)?,
            count: tcp(libc::TCP_KEEPCNT, MOST)?,
        })
    }

    fn set(self, fd: i32) -> Result<(), Errno> {
        let alive = || sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &i32::from(self.on));
        let times = || {
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &self.interval)?;
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &self.count)?;
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &self.idle)
        };
        // No probe by times that are not those of who wants it.
        let (first, second) = if self.on { (times(), alive()) } else { (alive(), times()) };
        first.and(second).map(drop)
    }

    /// Never 0.
    fn pack(self) -> u64 {
        let times = [self.interval, self.count]
            .iter()
            .fold(u64::from(self.idle), |word, &one| word << 16 | u64::from(one));
        times << 1 | u64::from(self.on)
    }

    fn unpack(word: u64) -> Self {
        let part = |shift: u32| (word >> shift) as u32 & 0xffff;
        Self { on: word & 1 != 0, idle: part(33), interval: part(17), count: part(1) }
    }

    /// With a probe after `idle` seconds; a peer that answers none ends the connection when it would have before, or later. `None`: these
    /// send one as early, or cannot be kept so.
    fn probing_after(self, idle: u32) -> Option<Self> {
        if !self.on {
            return Some(Self { on: true, idle, interval: idle, count: MOST });
        }
        if self.idle <= idle {
            return None;
        }
        let left = self.idle - idle + self.interval * self.count;
        let interval = left.div_ceil(MOST);
        (interval <= LONGEST).then(|| Self { on: true, idle, interval, count: left.div_ceil(interval) })
    }
}

/// Both lanes are about to open: TCP stays alive beneath them, where somebody may forget it.
pub fn begin(conn: Conn, fd: i32) {
    let Some(idle) = idle(conn.block) else { return };
    // By TCP_USER_TIMEOUT one probe that is lost would end the connection.
    if sys::option::<u32>(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) != Ok(0) {
        return;
    }
    let kept = &conn.block.tx.keepalive;
    if kept.load(Ordering::Relaxed) == 0
        && let Some(own) = Settings::of(fd)
        && let Some(probing) = own.probing_after(idle)
    {
        kept.store(own.pack(), Ordering::Relaxed);
        let _ = probing.set(fd);
    }
}

/// The lanes are over, or the descriptor goes to a foreign program: the program's settings are in force again.
pub fn over(conn: Conn, fd: i32) {
    let kept = &conn.block.tx.keepalive;
    if kept.load(Ordering::Relaxed) != 0 {
        let own = kept.swap(0, Ordering::Relaxed);
        if own != 0 {
            let _ = Settings::unpack(own).set(fd);
        }
    }
}

/// The program's own `call` about these settings finds its own.
pub fn aside<T>(conn: Conn, fd: i32, call: impl FnOnce() -> T) -> T {
    over(conn, fd);
    let result = call();
    if conn.block.life.is(Phase::Open) {
        begin(conn, fd);
    }
    result
}

/// Idle time after which TCP should send a probe, seconds. `None`: nobody forgets this connection.
///
/// What goes from an address to the same one, or to the loopback's, does not leave this network namespace, unless by its own NAT.
fn idle(block: &Block) -> Option<u32> {
    let (local, remote) = block.addresses();
    let stays = local.ip() == remote.ip() || remote.ip().is_loopback();
    let known = Some(tracked()).filter(|&seconds| seconds != UNTRACKED);
    let known = known.map(|seconds| (seconds / PROBES).clamp(1, LONGEST));
    if stays { known } else { Some(known.unwrap_or(UNKNOWN).min(UNKNOWN)) }
}

/// After so many seconds this network namespace forgets a silent connection, if it tracks any; asked now and then.
fn tracked() -> u32 {
    let now = clock::ticks();
    let ask_at = ASK_AT.load(Ordering::Relaxed);
    if ask_at == 0 || now >= ask_at {
        let tracks = number(c"/proc/sys/net/netfilter/nf_conntrack_count").is_some_and(|count| count > 0);
        let timeout = || number(c"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established");
        let seconds = if tracks { timeout().unwrap_or(UNKNOWN * PROBES) } else { UNTRACKED };
        TRACKED.store(seconds, Ordering::Relaxed);
        ASK_AT.store(now + clock::from_us(ASK_US), Ordering::Relaxed);
    }
    TRACKED.load(Ordering::Relaxed)
}

/// A number in a file of /proc/sys.
fn number(path: &core::ffi::CStr) -> Option<u32> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 16];
    let n = rustix::io::read(&file, &mut text).ok()?;
    core::str::from_utf8(&text[..n]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: Settings = Settings { on: true, idle: 7200, interval: 75, count: 9 };

    #[test]
    fn settings_are_kept_in_a_word() {
        for own in [
            LINUX,
            Settings { on: false, ..LINUX },
            Settings { on: true, idle: LONGEST, interval: LONGEST, count: MOST },
        ] {
            assert_eq!(Settings::unpack(own.pack()), own);
            assert_ne!(own.pack(), 0);
        }
    }

    #[test]
    fn a_silent_peer_has_no_less_time_than_the_program_gives_it() {
        let time = |settings: Settings| settings.idle + settings.interval * settings.count;
        for own in [
            LINUX,
            Settings { on: true, idle: 30, interval: 1, count: 3 },
            Settings { interval: LONGEST - 100, count: MOST, ..LINUX },
        ] {
            let probing = own.probing_after(20).expect("its own come later");
            assert!(probing.idle == 20 && probing.count <= MOST && probing.interval <= LONGEST);
            assert!(time(probing) >= time(own) && time(probing) < time(own) + probing.interval);
        }
    }

    #[test]
    fn settings_that_probe_as_early_or_cannot_be_kept_stay() {
        assert_eq!(Settings { interval: LONGEST, count: MOST, ..LINUX }.probing_after(20), None);
        assert_eq!(Settings { on: true, idle: 20, interval: 5, count: 3 }.probing_after(20), None);
        assert_eq!(Settings { on: true, idle: 1, interval: 1, count: 1 }.probing_after(20), None);
    }
}
