//! An epoll set as the table of descriptors knows it: plain data, which `sets` keeps and `epoll` reads.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::mutex::Mutex;

/// An epoll set of the program. 64-byte aligned: the table keeps its address beside a kind.
#[repr(align(64))]
pub struct Set {
    pub(crate) epfd: AtomicI32,
    /// Process that uses it.
    pub(crate) pid: AtomicU32,
    pub(crate) refs: AtomicU32,
    /// Registrations in it that are on lanes.
    pub(crate) managed: AtomicU32,
    /// Doorbell queue plus one, once the doorbell is in the set.
    pub(crate) cq: AtomicU32,
    /// Somebody waits for the set itself (nested, or in poll): its connections are on TCP, where the kernel
    /// answers for the whole of it.
    pub(crate) watched: AtomicBool,
    /// A forked child has it, too: of what the kernel tells there, it tells either process.
    pub(crate) shared: AtomicBool,
    /// Its number among those that the processes of the tree share, plus one; 0 none.
    pub(crate) mark: AtomicU32,
    /// The kernel has refused it an entry that lanes take: it gets none any more.
    pub(crate) refused: AtomicBool,
    /// Exclusive entries that the kernel has refused to take back.
    pub(crate) lost: AtomicU32,
    /// Beginnings and ends of waits through the hooks (upper half), and threads in libc's own wait (lower half). One that was cancelled there
    /// stays counted.
    pub(crate) waits: AtomicU64,
    /// Counts what a call must not tell of twice: reports, and registrations that came on lanes.
    pub(crate) clock: AtomicU64,
    /// When the last wait began in which the kernel told of all that it had.
    pub(crate) told_all: AtomicU64,
    /// Ticks from when on a sleep looks for connections whose bytes nobody hears of (`tx::unheard`); 0: there are none. Changes under the
    /// list's lock.
    pub(crate) unheard_from: AtomicU64,
    /// Link group at which the next look for news begins.
    pub(crate) links: AtomicU32,
    pub(crate) list: Mutex<List>,
}

impl Set {
    pub(crate) const fn new() -> Self {
        Self {
            epfd: AtomicI32::new(-1),
            pid: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            managed: AtomicU32::new(0),
            cq: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            mark: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            lost: AtomicU32::new(0),
            waits: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            told_all: AtomicU64::new(0),
            unheard_from: AtomicU64::new(0),
            links: AtomicU32::new(0),
            list: Mutex::new(List::new()),
        }
    }

    /// The next moment of the set's clock. Under the list's lock.
    pub(crate) fn tick(&self) -> u64 {
        let now = self.clock.load(Ordering::Relaxed) + 1;
        self.clock.store(now, Ordering::Relaxed);
        now
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Nobody hears of the bytes of registration `index`: a sleep from `at` on, ticks, looks at it.
    pub(crate) fn note_unheard(&self, list: &mut List, index: u32, at: u64) {
        list.note(index);
        let from = self.unheard_from.load(Ordering::Relaxed);
        if from == 0 || at < from {
            self.unheard_from.store(at, Ordering::Relaxed);
        }
    }

    /// Those that the caller looks at now, indices, 0 behind the last one. `None`: they may be any of the set's.
    pub(crate) fn take_unheard(&self, list: &mut List) -> Option<[u32; NOTED]> {
        self.unheard_from.store(0, Ordering::Relaxed);
        list.take_noted()
    }

    /// Whether a thread is in libc's own wait.
    pub(crate) fn has_waits_of_libc(&self) -> bool {
        self.waits.load(Ordering::SeqCst) as u32 != 0
    }

    /// How many waits through the hooks have begun or ended, wrapping.
    pub(crate) fn waits(&self) -> u32 {
        (self.waits.load(Ordering::Relaxed) >> 32) as u32
    }
}

/// The active list, and what its scans remember.
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
    pub(crate) kernel_at: u64,
    /// Until then the kernel's part is asked in each look.
    pub(crate) mixed_until: u64,
    /// The kernel's events left no room for the lanes'.
    pub(crate) kernel_filled: bool,
    pub(crate) sleepers: u32,
    /// Registrations that were noted (`Set::note_unheard`) since the last look at them, and how many: more than have room here are any.
    noted: [u32; NOTED],
    noted_len: u32,
}

/// As many as one thread talks with at a time, where threads share nothing; a look at more goes over all that the process has.
const NOTED: usize = 13;

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            head: 0,
            tail: 0,
            len: 0,
            kernel_at: 0,
            mixed_until: 0,
            kernel_filled: false,
            sleepers: 0,
            noted: [0; NOTED],
            noted_len: 0,
        }
    }

    fn note(&mut self, index: u32) {
        if let Some(to) = self.noted.get_mut(self.noted_len as usize) {
            *to = index;
        }
        self.noted_len = (self.noted_len + 1).min(NOTED as u32 + 1);
    }

    fn take_noted(&mut self) -> Option<[u32; NOTED]> {
        let noted = (self.noted_len as usize <= NOTED).then_some(self.noted);
        (self.noted, self.noted_len) = ([0; NOTED], 0);
        noted
    }
}
