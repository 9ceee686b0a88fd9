//! What a program has counted, read from its arena.
//!
//! Arenas are written by the clients at will: what is read here is shown, never acted upon.

use crate::report::{
    Calls, ConnectionCounts, Direction, FallbackCount, HISTOGRAM, Process, RoleCounts, Stats, Traffic,
    WakeUps,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use shunpike_shm::arena::{ArenaView, BUCKETS, Block, Half, Header, REASONS, Totals, WAKES, Waits, mode};
use shunpike_wire::Reason;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Names an arena: the inode of its memfd.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaKey(u64, u64);

impl ArenaKey {
    /// The key of the arena in `fd`.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        rustix::fs::fstat(fd).map(|stat| Self(stat.st_dev, stat.st_ino))
    }
}

/// Traffic on lanes in one direction.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
struct Flow {
    bytes: u64,
    calls: u64,
    sizes: [u64; BUCKETS],
}

/// Everything that is summed up. Index 0 is the client's role, 1 the server's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sums {
    handled: [u64; 2],
    upgraded: [u64; 2],
    fallback: [[u64; REASONS]; 2],
    revoked: u64,
    handshake_errors: u64,
    sleeps: u64,
    spins: u64,
    corked: u64,
    wakes: [u64; WAKES],
    tx: Flow,
    rx: Flow,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            handled: [0; 2],
            upgraded: [0; 2],
            fallback: [[0; REASONS]; 2],
            revoked: 0,
            handshake_errors: 0,
            sleeps: 0,
            spins: 0,
            corked: 0,
            wakes: [0; WAKES],
            tx: Flow::default(),
            rx: Flow::default(),
        }
    }
}

/// No user's programs have counted further together: more is not believed.
pub const BELIEVED: u64 = 1 << 56;
/// No sum is larger: a histogram's classes can be added up.
pub const LARGEST: u64 = 1 << 59;

/// What an arena says: its counters first, and then its blocks, some in each turn.
pub struct Look {
    sums: Sums,
    open: [u64; 2],
    next: u32,
}

impl Look {
    /// Its counters, and of its blocks none yet.
    pub fn begin(arena: &ArenaView) -> Self {
        Self { sums: Sums::of_header(&arena.header()), open: [0; 2], next: 0 }
    }

    /// Looks at so many blocks more. Returns how many fewer there were: with the last of them it has seen all.
    pub fn go_on(&mut self, arena: &ArenaView, looks: usize) -> usize {
        let mut left = looks;
        for (_, block) in arena.held(self.next, &mut left) {
            self.sums.add_block(&block);
            self.open[usize::from(!is_on_lane(&block))] += 1;
        }
        self.next = self.next.saturating_add(looks as u32);
        left
    }

    /// What it has seen; and how many connection ends are open, with a lane and without.
    pub fn end(self) -> (Sums, [u64; 2]) {
        (self.sums, self.open)
    }
}

impl Sums {
    fn add_block(&mut self, block: &Block) {
        self.tx.add_half(&block.tx);
        self.rx.add_half(&block.rx);
        let role = usize::from(block.role.load(Ordering::Relaxed) & 1);
        if let (false, Some(reason)) = (is_on_lane(block), Reason::from_code(word(&block.reason)))
            && let Some(count) = self.fallback[role].get_mut(reason.index())
        {
            *count = count.saturating_add(1);
        }
    }

    /// What is said now, where `before` was said earlier: none of it has grown by more than `most`. A count that goes back is a lie, or of
    /// a connection that closed in the midst of a look; but of those on TCP with a reason some may have got lanes.
    pub fn after(mut self, before: &Self, most: u64) -> Self {
        self.zip(before, |now, before| now.min(before.saturating_add(most)));
        let fallback = self.fallback;
        self.zip(before, u64::max);
        Self { fallback, ..self }
    }

    /// By how much that number has grown that has grown most.
    pub fn growth_since(&self, before: &Self) -> u64 {
        let mut grown = self.clone();
        grown.subtract(before);
        grown.numbers().into_iter().flatten().map(|count| *count).max().unwrap_or(0)
    }

    /// Puts `now` in the place of `before`, which was added earlier. Neither wraps, however much was added.
    pub fn replace(&mut self, before: &Self, now: &Self) {
        let mut more = now.clone();
        more.subtract(before);
        let mut less = before.clone();
        less.subtract(now);
        self.zip(&more, |sum, more| sum.saturating_add(more).min(LARGEST));
        self.zip(&less, u64::saturating_sub);
    }

    fn of_header(header: &Header) -> Self {
        let pair = |pair: &[AtomicU64; 2]| [long(&pair[0]), long(&pair[1])];
        let sum = |which: &dyn Fn(&Waits) -> &AtomicU64| {
            header.waits.iter().fold(0u64, |sum, of| sum.saturating_add(long(which(of))))
        };
        let counts = |counts: &[AtomicU32; REASONS]| std::array::from_fn(|i| word(&counts[i]).into());
        Self {
            handled: pair(&header.handled),
            upgraded: pair(&header.upgraded),
            fallback: [counts(&header.fallback[0]), counts(&header.fallback[1])],
            revoked: long(&header.revoked),
            handshake_errors: long(&header.handshake_errors),
            sleeps: sum(&|of| &of.sleeps),
            spins: sum(&|of| &of.spins),
            corked: long(&header.corked),
            wakes: std::array::from_fn(|i| sum(&|of| &of.wakes[i])),
            tx: Flow::of_totals(&header.tx),
            rx: Flow::of_totals(&header.rx),
        }
    }

    /// Applies `f` to each number of ours and the same one of `other`.
    fn zip(&mut self, other: &Self, f: impl Fn(u64, u64) -> u64) {
        let mut other = other.clone();
        let from = other.numbers().into_iter().flatten();
        for (to, from) in self.numbers().into_iter().flatten().zip(from) {
            *to = f(*to, *from);
        }
    }

    fn numbers(&mut self) -> [&mut [u64]; 16] {
        let Self { handled, upgraded, fallback: [of_clients, of_servers], wakes, tx, rx, .. } = self;
        let one = std::slice::from_mut::<u64>;
        let [revoked, errors] = [&mut self.revoked, &mut self.handshake_errors].map(one);
        let [sleeps, spins, corked] = [&mut self.sleeps, &mut self.spins, &mut self.corked].map(one);
        let [sent, received] = [one(&mut tx.bytes), one(&mut rx.bytes)];
        let [sends, receives] = [one(&mut tx.calls), one(&mut rx.calls)];
        [
            handled,
            upgraded,
            of_clients,
            of_servers,
            revoked,
            errors,
            sleeps,
            spins,
            corked,
            wakes,
            sent,
            sends,
            &mut tx.sizes,
            received,
            receives,
            &mut rx.sizes,
        ]
    }

    /// Bytes sent on lanes.
    pub fn bytes_sent(&self) -> u64 {
        self.tx.bytes
    }

    /// Without `other`, as far as there is as much.
    pub fn subtract(&mut self, other: &Self) {
        self.zip(other, u64::saturating_sub);
    }

    /// As the tools show it.
    pub fn report(&self) -> Stats {
        let by_reason = |role: usize, index: usize| self.fallback[role].get(index).copied().unwrap_or(0);
        let reasons: Vec<FallbackCount> = Reason::ALL
            .iter()
            .map(|reason| FallbackCount {
                code: reason.code(),
                key: reason.key().to_owned(),
                text: reason.text().to_owned(),
                client: by_reason(0, reason.index()),
                server: by_reason(1, reason.index()),
            })
            .filter(|count| count.client > 0 || count.server > 0)
            .collect();
        let sum = |counts: &[u64]| counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let fell_back = |role: usize| sum(&self.fallback[role]);
        let role = |role: usize| RoleCounts {
            handled: self.handled[role],
            smc: self.upgraded[role],
            fallback: fell_back(role),
        };
        Stats {
            connections: ConnectionCounts {
                handled: sum(&self.handled),
                smc: sum(&self.upgraded),
                fallback: fell_back(0).saturating_add(fell_back(1)),
                client: role(0),
                server: role(1),
                reasons,
                revoked: self.revoked,
                handshake_errors: self.handshake_errors,
            },
            tx: self.tx.report(),
            rx: self.rx.report(),
            sleeps: self.sleeps,
            spins: self.spins,
            corked: self.corked,
            wakeups: WakeUps::of(self.wakes),
            broker: String::new(),
            resets: 0,
            at_us: None,
        }
    }
}

impl Flow {
    fn of_totals(totals: &Totals) -> Self {
        Self {
            bytes: long(&totals.bytes),
            calls: long(&totals.calls),
            sizes: std::array::from_fn(|i| long(&totals.sizes[i])),
        }
    }

    fn add_half(&mut self, half: &Half) {
        self.bytes = self.bytes.saturating_add(half.bytes.load(Ordering::Relaxed));
        self.calls = self.calls.saturating_add(half.calls.load(Ordering::Relaxed));
        for (to, from) in self.sizes.iter_mut().zip(&half.sizes) {
            *to = to.saturating_add(from.load(Ordering::Relaxed).into());
        }
    }

    fn report(&self) -> Traffic {
        let histogram = HISTOGRAM
            .iter()
            .zip(self.sizes)
            .map(|(label, calls)| Calls { size: (*label).to_owned(), calls })
            .collect();
        Traffic { bytes: self.bytes, calls: self.calls, histogram }
    }
}

/// What the process of an arena has done, but for its name.
pub fn process(sums: &Sums, [lanes, plain]: [u64; 2]) -> Process {
    Process {
        connections: lanes + plain,
        lanes,
        tx_bytes: sums.tx.bytes,
        tx_calls: sums.tx.calls,
        rx_bytes: sums.rx.bytes,
        rx_calls: sums.rx.calls,
        fallback: sums.fallback.iter().flatten().fold(0, |sum, count| sum.saturating_add(*count)),
        revoked: sums.revoked,
        sleeps: sums.sleeps,
        spins: sums.spins,
        wakeups: WakeUps::of(sums.wakes),
        ..Process::default()
    }
}

fn is_on_lane(block: &Block) -> bool {
    block.halves().iter().any(|half| half.mode.load(Ordering::Relaxed) == mode::LANE)
}

/// Direction of a half, for a tool.
pub fn direction(half: &Half) -> Direction {
    let ring = u64::from(half.ring.load(Ordering::Relaxed));
    Direction {
        mode: match half.mode.load(Ordering::Relaxed) {
            mode::PLAIN => "plain",
            mode::GRANTED => "granted",
            mode::LANE => "lane",
            mode::DEBT => "debt",
            _ => "unknown",
        }
        .to_owned(),
        bytes: half.bytes.load(Ordering::Relaxed),
        calls: half.calls.load(Ordering::Relaxed),
        tcp_bytes: long(&half.tcp_bytes),
        ring,
        token: format!("{:016x}", half.token.load(Ordering::Relaxed)),
        generation: half.generation.load(Ordering::Relaxed),
        window: 0,
        own_cursor: half.cursor.load(Ordering::Relaxed),
        peer_cursor: half.other.load(Ordering::Relaxed),
        prod_flags: 0,
        state_flags: 0,
    }
}

fn word(atomic: &AtomicU32) -> u32 {
    atomic.load(Ordering::Relaxed)
}

fn long(atomic: &AtomicU64) -> u64 {
    atomic.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunpike_shm::arena::{Arena, BLOCKS, Held};
    use shunpike_shm::lock::Section;

    /// These tests have no handlers.
    struct NoHandlers;

    // SAFETY: there are none.
    unsafe impl Section for NoHandlers {}

    fn arena() -> (Arena, ArenaView) {
        let arena = Arena::create(7).unwrap();
        let view = ArenaView::of(arena.fd().try_clone().unwrap()).unwrap();
        (arena, view)
    }

    fn seen(view: &ArenaView) -> (Sums, [u64; 2]) {
        let mut look = Look::begin(view);
        while look.go_on(view, 2) == 0 {}
        look.end()
    }

    #[test]
    fn live_connections_and_gone_ones_add_up() {
        let (arena, view) = arena();
        arena.header().handled[0].store(3, Ordering::Relaxed);
        arena.header().tx.bytes.store(100, Ordering::Relaxed);
        let block = arena.allocate().unwrap();
        block.reason.store(Reason::NoUeid.code(), Ordering::Relaxed);
        block.tx.lock(NoHandlers).held().count(20_000);
        let stats = seen(&view).0.report();
        assert_eq!((stats.tx.bytes, stats.tx.calls), (20_100, 1));
        assert_eq!(stats.tx.histogram[2], Calls { size: "32KB".to_owned(), calls: 1 });
        assert_eq!(stats.connections.reasons[0].key, "no_ueid");
        assert_eq!((stats.connections.handled, stats.connections.client.fallback), (3, 1));
        let guard = block.rx.lock(NoHandlers);
        guard.held().mode.store(guard.held(), mode::LANE, Ordering::Relaxed);
        let (sums, open) = seen(&view);
        assert_eq!(sums.report().connections.fallback, 0, "half a lane is a lane");
        assert_eq!(open, [1, 0]);
        let process = process(&sums, open);
        assert_eq!((process.connections, process.lanes, process.tx_bytes), (1, 1, 20_100));
        block.free();
        assert_eq!(seen(&view).0.report().tx.bytes, 100);
    }

    #[test]
    fn a_look_in_many_turns_sees_each_block_once() {
        let (arena, view) = arena();
        for _ in 0..1000 {
            arena.allocate().unwrap();
        }
        let mut look = Look::begin(&view);
        let turns =
            std::iter::repeat_with(|| look.go_on(&view, 100)).take_while(|spared| *spared == 0).count();
        assert!((10..=11).contains(&turns), "{turns}");
        assert_eq!(look.end().1, [0, 1000]);
        assert_eq!(Look::begin(&view).go_on(&view, 0), 0, "nothing was looked at");
        assert!(Look::begin(&view).go_on(&view, BLOCKS) > 0);
    }

    #[test]
    fn every_number_is_summed_up_once() {
        let mut ones = Sums::default();
        ones.numbers().into_iter().flatten().for_each(|count| *count = 1);
        assert_eq!(ones.numbers().into_iter().flatten().count(), size_of::<Sums>() / 8);
        assert_eq!(Sums::default().growth_since(&ones), 0);
        let mut sums = Sums::default();
        sums.replace(&Sums::default(), &ones);
        assert_eq!(sums, ones);
    }
}
