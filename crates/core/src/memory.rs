//! How much memory the control groups of this process, and the machine, leave: rings hold a small part of it, and less where it gets
//! tight, so that a program lives on lanes where it lives on TCP.
//!
//! Looked at when a ring is to grow, and seldom: where there is no limit once a second, else a hundred times.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;
use shunpike_shm::lane::{MIN_WINDOW, PAGE};
use shunpike_shm::region;

use crate::limits::{each_line, number_of};
use crate::mutex::Mutex;

/// How long what was seen holds, microseconds: whether there is a limit, and what it leaves.
const LIMIT_US: u64 = 1_000_000;
const LEFT_US: u64 = 10_000;
/// All the windows of a process, beyond the smallest ones, have this share of a limit.
const WINDOWS: u64 = 16;
/// All its lanes, at their smallest, have this one.
const LANES: u64 = 8;
/// Where less than this share is left, nothing grows; with less than the next one, rings are given back.
const FREE: u64 = 8;
const TIGHT: u64 = 16;
/// Longest path of a control group that is looked at.
const LONGEST: usize = 512;

/// The tightest limit, bytes, and what it leaves; the largest number for none.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Ticks of when each is to be looked at again.
static LIMIT_AT: AtomicU64 = AtomicU64::new(0);
static LEFT_AT: AtomicU64 = AtomicU64::new(0);
/// Memory is scarce enough for rings that are not needed to be given back.
static WANTED: AtomicBool = AtomicBool::new(false);
static LOOKING: Mutex<()> = Mutex::new(());

/// Whether the windows of this process, `windows` bytes by now, may grow by `more`.
pub fn may_grow(windows: u64, more: u64) -> bool {
    let (limit, left) = look();
    windows + more <= limit / WINDOWS && left >= limit / FREE
}

/// Whether a lane more may open, where so many take `bytes` each.
pub fn may_open(lanes: u64, bytes: u64) -> bool {
    let (limit, left) = look();
    (lanes + 1) * bytes <= limit / LANES && left >= limit / FREE
}

/// Whether there is memory for the lanes of a connection more, one each way, beside those that are mapped. Each counts with the window that
/// it may grow to without asking again.
pub fn may_open_lane() -> bool {
    let (_, mappings) = region::mapped();
    may_open(mappings as u64, (PAGE + MIN_WINDOW as usize) as u64)
}

/// Whether it is so tight that a ring in use should be given up.
pub fn is_tight() -> bool {
    let (limit, left) = look();
    left < limit / TIGHT
}

/// Whether rings that are not in use should be given back now; said once.
#[inline]
pub fn wants_rings() -> bool {
    WANTED.load(Ordering::Relaxed) && WANTED.swap(false, Ordering::Relaxed)
}

/// The tightest limit and what it leaves, as last seen.
fn look() -> (u64, u64) {
    let now = clock::ticks();
    let is_due = |at: &AtomicU64| now >= at.load(Ordering::Relaxed);
    let is_limited = LIMIT.load(Ordering::Relaxed) != u64::MAX;
    // Whoever comes first looks; nobody waits for it.
    if (is_due(&LIMIT_AT) || is_limited && is_due(&LEFT_AT))
        && let Some(_looking) = LOOKING.try_lock()
    {
        let (limit, left) = tightest();
        LIMIT.store(limit, Ordering::Relaxed);
        LEFT.store(left, Ordering::Relaxed);
        LEFT_AT.store(now + clock::from_us(LEFT_US), Ordering::Relaxed);
        if is_due(&LIMIT_AT) {
            LIMIT_AT.store(now + clock::from_us(LIMIT_US), Ordering::Relaxed);
            WANTED.store(limit != u64::MAX, Ordering::Relaxed);
        } else if left < limit / TIGHT {
            WANTED.store(true, Ordering::Relaxed);
        }
    }
    (LIMIT.load(Ordering::Relaxed), LEFT.load(Ordering::Relaxed))
}

/// Of the limits of all control groups that this process is in, the one that leaves least.
fn tightest() -> (u64, u64) {
    let mut found = (u64::MAX, u64::MAX);
    let mut consider = |limit: u64, left: u64| {
        if left < found.1 {
            found = (limit, left);
        }
    };
    each_line(c"/proc/self/cgroup", |line| {
        let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return };
        let kind = if controllers.is_empty() {
            &UNIFIED
        } else if controllers.split(|&byte| byte == b',').any(|name| name == b"memory") {
            &MEMORY
        } else {
            return;
        };
        if let Some((mount, below)) = kind.place(group) {
            kind.each_level(&mount, below, &mut consider);
        }
    });
    found
}

/// How a version of control groups names its files.
struct Kind {
    /// Type of the file system, and the option that tells its memory controller.
    mounted_as: (&'static [u8], &'static [u8]),
    limits: &'static [&'static str],
    usage: &'static str,
    /// In memory.stat: memory of files that can be had back.
    reclaimable: &'static [&'static [u8]],
}

static UNIFIED: Kind = Kind {
    mounted_as: (b"cgroup2", b""),
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &[b"inactive_file ", b"active_file "],
};
static MEMORY: Kind = Kind {
    mounted_as: (b"cgroup", b"memory"),
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &[b"total_inactive_file ", b"total_active_file "],
};

/// A path, without memory of its own.
#[derive(Copy, Clone)]
struct Path {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Path {
    const fn new() -> Self {
        Self { bytes: [0; LONGEST], len: 0 }
    }

    fn push(&mut self, more: &[u8]) -> Option<()> {
        // One byte stays zero: its end.
        self.bytes.get_mut(self.len..LONGEST - 1)?.get_mut(..more.len())?.copy_from_slice(more);
        self.len += more.len();
        Some(())
    }
}

impl Kind {
    /// Where the control groups of this kind are mounted, and which part of `group` is below that.
    fn place<'a>(&self, group: &'a [u8]) -> Option<(Path, &'a [u8])> {
        let mut found = None;
        each_line(c"/proc/self/mountinfo", |line| {
            // ID parent device root mount-point options [optional...] - type source super-options (proc_pid_mountinfo(5)).
            let mut fields = line.split(|&byte| byte == b' ');
            let (Some(root), Some(at)) = (fields.nth(3), fields.next()) else { return };
            let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
            let (Some(kind), Some(options)) = (rest.next(), rest.nth(1)) else { return };
            let (wanted, option) = self.mounted_as;
            let is_it = kind == wanted
                && (option.is_empty() || options.split(|&byte| byte == b',').any(|one| one == option));
            // What is mounted need not be the whole hierarchy: a container sees its own part.
            let below = if root == b"/" { Some(group) } else { group.strip_prefix(root) };
            if let Some(below) = below.filter(|_| is_it && found.is_none()) {
                let mut path = Path::new();
                found = path.push(at).map(|()| (path, below));
            }
        });
        found
    }

    /// Calls `each` with every limit from the group up to where it is mounted, and what it leaves.
    fn each_level(&self, mount: &Path, group: &[u8], each: &mut impl FnMut(u64, u64)) {
        let mut group = group.strip_suffix(b"/").unwrap_or(group);
        loop {
            self.level(mount, group, each);
            let Some(slash) = group.iter().rposition(|&byte| byte == b'/') else { return };
            group = &group[..slash];
        }
    }

    fn level(&self, mount: &Path, group: &[u8], each: &mut impl FnMut(u64, u64)) {
        let file = |name: &str| {
            let mut path = *mount;
            path.push(group)?;
            path.push(b"/")?;
            path.push(name.as_bytes())?;
            Some(path)
        };
        // Of v1 without a limit a number that no memory has; of v2 a word.
        let limit =
            self.limits.iter().filter_map(|name| first(&file(name)?)).filter(|&limit| limit < 1 << 60).min();
        let Some(limit) = limit else { return };
        let Some(usage) = file(self.usage).and_then(|path| first(&path)) else { return };
        let mut reclaimable = 0;
        if usage > limit / 2
            && let Some(path) = file("memory.stat")
        {
            lines(&path, |line| {
                let kept = self.reclaimable.iter().find_map(|name| line.strip_prefix(*name));
                reclaimable += kept.and_then(number_of).unwrap_or(0);
            });
        }
        each(limit, limit.saturating_sub(usage.saturating_sub(reclaimable)));
    }
}

fn first(path: &Path) -> Option<u64> {
    let mut number = None;
    lines(path, |line| number = number.or_else(|| number_of(line)));
    number
}

fn lines(path: &Path, each: impl FnMut(&[u8])) {
    if let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path.bytes) {
        each_line(path, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_below_what_is_mounted_and_each_limit_above_it_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("written");
        std::fs::create_dir_all(directory.path().join("a/b")).expect("made");
        for (level, most, high, usage) in
            [("", "max", "max", 900), ("a/", "1000", "max", 600), ("a/b/", "max", "800", 300)]
        {
            write(&format!("{level}memory.max"), &format!("{most}\n"));
            write(&format!("{level}memory.high"), &format!("{high}\n"));
            write(&format!("{level}memory.current"), &format!("{usage}\n"));
        }
        write("a/memory.stat", "anon 100\ninactive_file 50\nactive_file 7\nslab 30\n");
        let mut mount = Path::new();
        mount.push(directory.path().to_str().expect("UTF-8").as_bytes()).expect("short");
        let mut seen = Vec::new();
        UNIFIED.each_level(&mount, b"/a/b", &mut |limit, left| seen.push((limit, left)));
        assert_eq!(seen, [(800, 500), (1000, 457)]);
        assert!(mount.push(&[b'x'; LONGEST]).is_none(), "too long");
    }

    #[test]
    fn without_a_limit_all_may_grow() {
        if tightest().0 == u64::MAX {
            assert!(may_grow(1 << 30, 1 << 30) && may_open(1 << 20, 1 << 20) && !is_tight());
        }
    }
}
