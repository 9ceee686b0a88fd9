//! Pages that the broker creates: a session's mailbox counter, the knobs, and the link page of two processes.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Size of each of these pages, bytes.
pub const PAGE: usize = 4096;
/// Completion queues that a process can have.
pub const CQS: usize = 8;

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
    /// ... or after this many bytes in either direction.
    pub nominate_bytes: AtomicU32,
    /// Longest spin before a sleep, in microseconds; 0: never spin.
    pub spin_us: AtomicU32,
    /// How long a writer waits on a full ring whose reader does not move before it ends the lane, milliseconds.
    pub grace_ms: AtomicU32,
    /// CPUs online.
    pub cpus: AtomicU32,
}

/// One side's half of a link page: written by that side's process, read and swapped by the other.
///
/// | word | writer | reader | a hostile value can |
/// |---|---|---|---|
/// | news | poster sets bits, consumer takes them | consumer | make it look at connections of this link in vain |
/// | sleeps | consumer declares, poster clears | poster | cost the poster a needless write to an eventfd, or itself a wake-up |
#[repr(C, align(128))]
pub struct CqNews {
    /// A bit for each connection (slot) of the link group.
    pub news: [AtomicU64; 4],
    /// Epoch of the consumer's sleep on this CQ, 0 awake.
    pub sleeps: AtomicU64,
    _rest: [u64; 11],
}

/// Shared by the two processes of a link group. `halves[s]` carries news *to* side `s`, a line pair per CQ.
#[repr(C)]
pub struct LinkPage {
    /// News for side 0 and for side 1.
    pub halves: [[CqNews; CQS]; 2],
}

const _: () = assert!(size_of::<LinkPage>() <= PAGE && size_of::<CqNews>() == 128);
