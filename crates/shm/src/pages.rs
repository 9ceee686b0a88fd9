//! Pages that the broker creates: a session's mailbox counter, the knobs, and the link page of two processes.

use crate::primitive::{self, Ordering, full_fence_after_rmw};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Size of each of these pages, bytes.
pub const PAGE: usize = 4096;
/// Completion queues that a process can have.
pub const CQS: usize = 8;
/// Connections of a link group, each with a bit of news.
pub const SLOTS: usize = 256;

/// Written by the broker, mapped read-only by the one client of the session.
#[repr(C)]
pub struct SessionPage {
    /// Messages that the broker has sent so far (wrapping): a change means that a look at the socket pays.
    pub posted: AtomicU32,
}

/// Written by the broker, mapped read-only by all its clients. Values are in the units of the knobs' names.
#[repr(C)]
pub struct KnobPage {
    /// 1: new lanes may be opened; 0: connections stay on TCP and open lanes are closed.
    pub active: AtomicU32,
    /// 1: copy mode (own send buffer and move_data); 0: the send buffer is the peer's DMB.
    pub dmb_copy: AtomicU32,
    /// Ring size class of new DMBs: 16 KiB << n.
    pub rmem_class: AtomicU32,
    /// Nominate after this many calls that moved data in the less busy direction.
    pub nominate_calls: AtomicU32,
    /// Nominate after this many bytes in either direction.
    pub nominate_bytes: AtomicU32,
    /// Longest spin before a sleep, in microseconds; 0: never spin.
    pub spin_us: AtomicU32,
    /// How long a writer waits on a full ring whose reader does not move before it ends the lane, milliseconds.
    pub grace_ms: AtomicU32,
    /// CPUs online.
    pub cpus: AtomicU32,
    /// Most bytes of a ring that a sender uses; 0 (an older broker): no limit.
    pub wmem: AtomicU32,
    /// Completion queues that a process spreads its pollers over; 0 (an older broker): no limit.
    pub max_cqs: AtomicU32,
    /// MSG_ZEROCOPY: buffers of so many bytes or more are lent, whatever it costs; 0: larger ones where that is measured to be
    /// no slower.
    pub lend_bytes: AtomicU32,
    /// Which waits spin: see [`profile`]; 0 also of an older broker.
    pub profile: AtomicU32,
}

/// Values of [`KnobPage::profile`].
pub mod profile {
    /// What they are called, by their values.
    pub const NAMES: [&str; 3] = ["balanced", "latency", "efficiency"];
    /// Waits that pay spin.
    pub const BALANCED: u32 = 0;
    /// All waits spin.
    pub const LATENCY: u32 = 1;
    /// None does.
    pub const EFFICIENCY: u32 = 2;
}

/// News for one completion queue of one side, in a link page (models/cq.pml).
///
/// | word | offset | writer | reader | a hostile value can |
/// |---|---|---|---|---|
/// | news | 0x00 | poster sets bits, consumer takes them | consumer | make it look at connections of this link in vain |
/// | sleeps | 0x20 | consumer declares, poster clears | poster | cost the poster a needless write to an eventfd, or itself a wake-up |
/// | rung | 0x28 | poster | consumer | make the consumer's statistics of wake-ups lie, and cost it a yield |
/// | posts, order | 0x40 | poster | consumer | make the connections of this link be looked at in another order |
#[repr(C, align(128))]
pub struct CqNews {
    news: [primitive::AtomicU64; SLOTS / 64],
    sleeps: primitive::AtomicU64,
    rung: AtomicU64,
    posted: Posted,
}

/// Last posts that a queue remembers.
const LAST: usize = 30;

/// The order of the last posts. A help only: what was posted the bits say.
#[repr(C, align(64))]
struct Posted {
    count: AtomicU32,
    slots: [AtomicU16; LAST],
}

/// Each word of a [`CqNews`], for the document.
#[cfg(all(test, not(loom)))]
pub(crate) fn link_layout() -> Vec<(&'static str, Vec<usize>)> {
    use core::mem::offset_of;
    vec![
        ("news", vec![offset_of!(CqNews, news)]),
        ("sleeps", vec![offset_of!(CqNews, sleeps)]),
        ("rung", vec![offset_of!(CqNews, rung)]),
        (
            "posts, order",
            vec![offset_of!(CqNews, posted), offset_of!(CqNews, posted) + offset_of!(Posted, slots)],
        ),
    ]
}

/// Each word of the broker's pages, for the document.
#[cfg(all(test, not(loom)))]
pub(crate) fn brokers_layout() -> Vec<(&'static str, Vec<usize>)> {
    use core::mem::offset_of;
    macro_rules! knobs {
        ($($knob:ident),*) => {[$((stringify!($knob), vec![offset_of!(KnobPage, $knob)])),*]};
    }
    let knobs = knobs!(
        active,
        dmb_copy,
        rmem_class,
        nominate_calls,
        nominate_bytes,
        spin_us,
        grace_ms,
        cpus,
        wmem,
        max_cqs,
        lend_bytes,
        profile
    );
    assert_eq!(size_of::<KnobPage>(), knobs.len() * size_of::<AtomicU32>());
    [("posted", vec![offset_of!(SessionPage, posted)])].into_iter().chain(knobs).collect()
}

/// A consumer's declared sleep, as a poster saw it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sleep(u64);

impl CqNews {
    /// No news, nobody asleep: what a fresh page holds.
    pub fn new() -> Self {
        let word = || primitive::AtomicU64::new(0);
        let posted = Posted { count: AtomicU32::new(0), slots: [const { AtomicU16::new(0) }; LAST] };
        Self { news: core::array::from_fn(|_| word()), sleeps: word(), rung: AtomicU64::new(0), posted }
    }

    /// Poster: connection `slot` has news. Returns the sleep to ring for and then to call [`Self::answered`]
    /// with. A slot beyond [`SLOTS`] is nobody's.
    #[must_use]
    pub fn post(&self, slot: u16) -> Option<Sleep> {
        let word = self.news.get(usize::from(slot / 64))?;
        let at = self.posted.count.fetch_add(1, Ordering::Relaxed) as usize % LAST;
        self.posted.slots[at].store(slot, Ordering::Relaxed);
        // Release pairs with the Acquire of `take`; the read-modify-write and fence with `declare`: one of
        // the two sees the other.
        word.fetch_or(1 << (slot % 64), Ordering::AcqRel);
        full_fence_after_rmw();
        let epoch = self.sleeps.load(Ordering::Acquire);
        (epoch != 0).then_some(Sleep(epoch))
    }

    /// Poster, before it rings: when that is.
    pub fn stamp(&self, ticks: u64) {
        // Only counted with, never relied upon.
        self.rung.store(ticks, Ordering::Relaxed);
    }

    /// Consumer: when it was last rung for, unchecked.
    pub fn rung(&self) -> u64 {
        self.rung.load(Ordering::Relaxed)
    }

    /// Poster, after ringing for exactly this sleep: it is answered. Never before: a poster killed in between
    /// would leave a sleeper behind whom nobody rings any more.
    pub fn answered(&self, sleep: Sleep) {
        // A fresher sleep stays. AcqRel: in one order with the swap of `declare`.
        let _ = self.sleeps.compare_exchange(sleep.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Consumer: goes to sleep, with an `epoch` (not 0) that no sleep on this queue has had within reach of a
    /// poster. [`Self::any`] must be asked once more after. Only posters clear it: several threads may sleep.
    pub fn declare(&self, epoch: u64) {
        self.sleeps.swap(epoch.max(1), Ordering::AcqRel);
        full_fence_after_rmw();
    }

    /// Consumer: whether there is news.
    pub fn any(&self) -> bool {
        // Acquire pairs with the Release of `post`.
        self.news.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Consumer: takes the news and calls `each` with every slot named, before it looks at the connections:
    /// what is posted meanwhile is found the next time. In the order of the posts, as far as that is known: a program that
    /// writes to one connection and then to another may count on it, as on TCP.
    pub fn take(&self, mut each: impl FnMut(u16)) {
        let mut bits: [u64; SLOTS / 64] =
            core::array::from_fn(|at| match self.news[at].load(Ordering::Relaxed) {
                0 => 0,
                // Acquire pairs with the Release of `post`.
                _ => self.news[at].swap(0, Ordering::AcqRel),
            });
        let (mut last, mut n) = ([0; LAST], 0);
        if bits.iter().map(|word| word.count_ones()).sum::<u32>() > 1 {
            let count = self.posted.count.load(Ordering::Relaxed) as usize;
            // The latest first; what is not among them is older.
            for back in 1..=LAST {
                let slot = self.posted.slots[count.wrapping_sub(back) % LAST].load(Ordering::Relaxed);
                let Some(word) = bits.get_mut(usize::from(slot / 64)) else { continue };
                let bit = 1 << (slot % 64);
                if *word & bit != 0 {
                    *word &= !bit;
                    last[n] = slot;
                    n += 1;
                }
            }
        }
        for (mut word, base) in bits.into_iter().zip((0u16..).step_by(64)) {
            while word != 0 {
                each(base + word.trailing_zeros() as u16);
                word &= word - 1;
            }
        }
        last[..n].iter().rev().for_each(|&slot| each(slot));
    }
}

impl Default for CqNews {
    fn default() -> Self {
        Self::new()
    }
}

/// Shared by the two processes of a link group. `halves[s]` carries news *to* side `s`, a line pair per CQ.
#[repr(C)]
pub struct LinkPage {
    /// News for side 0 and for side 1.
    pub halves: [[CqNews; CQS]; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LinkPage>() <= PAGE && size_of::<CqNews>() == 128);
