//! Sums over all programs: those that run, read from their arenas, and those that are gone.
//!
//! Arenas are written by the clients at will: what is read here is shown, never acted upon.

use crate::clock;
use crate::report::{
    Calls, ConnectionCounts, Direction, FallbackCount, HISTOGRAM, Process, RoleCounts, Stats, Traffic,
    WakeUps,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use shunpike_shm::arena::{
    ArenaView, BLOCKS, BUCKETS, Block, Half, Header, REASONS, Totals, WAKES, Waits, mode,
};
use shunpike_wire::Reason;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Names an arena: the inode of its memfd.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArenaKey(u64, u64);

impl ArenaKey {
    /// The key of the arena in `fd`.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        rustix::fs::fstat(fd).map(|stat| Self(stat.st_dev, stat.st_ino))
    }
}

/// An arena, and the user whose it is.
pub type Seen<'a> = (ArenaKey, u32, &'a ArenaView);

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

/// No program has counted further: more is not believed.
const BELIEVED: u64 = 1 << 56;

impl Sums {
    /// What an arena says now, of which so many blocks are looked at.
    pub fn of(arena: &ArenaView, looks: &mut usize) -> Self {
        let mut sums = Self::of_header(&arena.header());
        for (_, block) in arena.held(0, looks) {
            sums.tx.add_half(&block.tx);
            sums.rx.add_half(&block.rx);
            let role = usize::from(block.role.load(Ordering::Relaxed) & 1);
            if let (false, Some(reason)) = (is_on_lane(&block), Reason::from_code(word(&block.reason)))
                && let Some(count) = sums.fallback[role].get_mut(reason.index())
            {
                *count = count.saturating_add(1);
            }
        }
        sums.each(|count| count.min(BELIEVED));
        sums
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

    fn each(&mut self, f: impl Fn(u64) -> u64) {
        let same = self.clone();
        self.zip(&same, |count, _| f(count));
    }

    /// Applies `f` to each number of ours and the same one of `other`.
    fn zip(&mut self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) {
        let each = |to: &mut [u64], from: &[u64]| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = f(*to, *from);
            }
        };
        each(&mut self.handled, &other.handled);
        each(&mut self.upgraded, &other.upgraded);
        each(&mut self.wakes, &other.wakes);
        for (to, from) in self.fallback.iter_mut().zip(&other.fallback) {
            each(to, from);
        }
        for (to, from) in [
            (&mut self.revoked, other.revoked),
            (&mut self.handshake_errors, other.handshake_errors),
            (&mut self.sleeps, other.sleeps),
            (&mut self.spins, other.spins),
            (&mut self.corked, other.corked),
        ] {
            *to = f(*to, from);
        }
        for (to, from) in [(&mut self.tx, &other.tx), (&mut self.rx, &other.rx)] {
            to.bytes = f(to.bytes, from.bytes);
            to.calls = f(to.calls, from.calls);
            each(&mut to.sizes, &from.sizes);
        }
    }

    fn add(&mut self, other: &Self) {
        self.zip(other, u64::wrapping_add);
    }

    /// What was added is taken away again: also beyond a bound, where what was added before it would be lost.
    fn take_back(&mut self, other: &Self) {
        self.zip(other, u64::wrapping_sub);
    }

    fn subtract(&mut self, other: &Self) {
        self.zip(other, u64::saturating_sub);
    }

    fn report(&self) -> Stats {
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
pub fn process(arena: &ArenaView, looks: &mut usize) -> Process {
    let mut again = *looks;
    let sums = Sums::of(arena, looks);
    let [lanes, plain] = open(arena, &mut again);
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

/// Connection ends that are open now: with a lane, and without.
pub fn open(arena: &ArenaView, looks: &mut usize) -> [u64; 2] {
    let mut count = [0; 2];
    for (_, block) in arena.held(0, looks) {
        count[usize::from(!is_on_lane(&block))] += 1;
    }
    count
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

/// Blocks of one user that are looked at for one answer: one program's connections, or many programs' that have as many
/// together. Those beyond are counted when they are gone.
const OF_USER: usize = BLOCKS;

/// How many blocks of each user may still be looked at.
#[derive(Default)]
pub struct Looks(HashMap<u32, usize>);

impl Looks {
    /// Those of this user.
    pub fn of(&mut self, user: u32) -> &mut usize {
        self.0.entry(user).or_insert(OF_USER)
    }
}

/// The sums of the broker's life, or since they were reset.
#[derive(Default)]
pub struct Ledger {
    /// Sessions that share an arena.
    open: HashMap<ArenaKey, usize>,
    /// What arenas said when their last session ended.
    past: Sums,
    /// What they said at the last reset,
    baseline: Sums,
    /// of so many.
    resets: u64,
    /// Arenas whose programs may come back: their sums are in `past`, and would be counted twice.
    departed: HashMap<ArenaKey, (u32, Sums)>,
    /// What they were at some time, for those to whom that will do.
    lately: RefCell<Option<(Instant, Sums)>>,
}

/// How old those may be.
const LATELY: Duration = Duration::from_secs(1);

/// Departed arenas that are remembered. A program that comes back after more than that is counted twice.
const DEPARTED: usize = 256;

impl Ledger {
    /// A session with this arena begins.
    pub fn begin(&mut self, key: ArenaKey, arena: &ArenaView) {
        let sessions = self.open.entry(key).or_default();
        *sessions += 1;
        let pid = word(&arena.header().pid);
        if *sessions == 1
            && let Some((before, sums)) = self.departed.remove(&key)
            && before == pid
        {
            // The same process again: from now on its arena speaks for itself.
            self.past.take_back(&sums);
        }
    }

    /// A session with this arena ended.
    pub fn end(&mut self, key: ArenaKey, arena: &ArenaView, mut looks: usize) {
        let Some(sessions) = self.open.get_mut(&key) else { return };
        *sessions -= 1;
        if *sessions > 0 {
            return;
        }
        self.open.remove(&key);
        let sums = Sums::of(arena, &mut looks);
        self.past.add(&sums);
        if self.departed.len() >= DEPARTED {
            self.departed.clear();
        }
        self.departed.insert(key, (word(&arena.header().pid), sums));
    }

    /// The sums since the last reset. `arenas` may name one more than once.
    pub fn report<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> Stats {
        self.since_reset(self.now(arenas))
    }

    /// The same, as it was at a time no more than a second ago.
    pub fn report_lately<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> (Instant, Stats) {
        let (when, sums) = self.lately(arenas);
        (when, self.since_reset(sums))
    }

    fn since_reset(&self, mut sums: Sums) -> Stats {
        sums.subtract(&self.baseline);
        Stats { resets: self.resets, ..sums.report() }
    }

    /// As [`Ledger::moved`], no more than a second ago.
    pub fn moved_lately<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> u64 {
        self.lately(arenas).1.tx.bytes
    }

    fn lately<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> (Instant, Sums) {
        let mut kept = self.lately.borrow_mut();
        if let Some((when, sums)) = &*kept
            && clock::since(*when) < LATELY
        {
            return (*when, sums.clone());
        }
        kept.insert((clock::now(), self.now(arenas))).clone()
    }

    /// Lets the sums begin anew.
    pub fn reset<'a>(&mut self, arenas: impl Iterator<Item = Seen<'a>>) {
        self.baseline = self.now(arenas);
        self.resets += 1;
    }

    /// The sums since the broker began.
    pub fn total<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> Stats {
        self.now(arenas).report()
    }

    /// Bytes moved on lanes since the broker began.
    pub fn moved<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> u64 {
        self.now(arenas).tx.bytes
    }

    fn now<'a>(&self, arenas: impl Iterator<Item = Seen<'a>>) -> Sums {
        let mut sums = self.past.clone();
        let mut looks = Looks::default();
        let arenas: HashMap<_, _> = arenas.map(|(key, user, arena)| (key, (user, arena))).collect();
        for (user, arena) in arenas.into_values() {
            sums.add(&Sums::of(arena, looks.of(user)));
        }
        sums
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
    use rustix::fd::AsFd;
    use shunpike_shm::arena::{Arena, Held};
    use shunpike_shm::lock::Section;

    /// These tests have no handlers.
    struct NoHandlers;

    // SAFETY: there are none.
    unsafe impl Section for NoHandlers {}

    fn arena() -> (Arena, ArenaKey, ArenaView) {
        let arena = Arena::create(7).unwrap();
        let key = ArenaKey::of(arena.fd().as_fd()).unwrap();
        let view = ArenaView::of(arena.fd().try_clone().unwrap()).unwrap();
        (arena, key, view)
    }

    #[test]
    fn live_connections_and_gone_ones_add_up() {
        let (arena, _, view) = arena();
        arena.header().handled[0].store(3, Ordering::Relaxed);
        arena.header().tx.bytes.store(100, Ordering::Relaxed);
        let block = arena.allocate().unwrap();
        block.reason.store(Reason::NoUeid.code(), Ordering::Relaxed);
        block.tx.lock(NoHandlers).held().count(20_000);
        let stats = Sums::of(&view, &mut BLOCKS.clone()).report();
        assert_eq!((stats.tx.bytes, stats.tx.calls), (20_100, 1));
        assert_eq!(stats.tx.histogram[2], Calls { size: "32KB".to_owned(), calls: 1 });
        assert_eq!(stats.connections.reasons[0].key, "no_ueid");
        assert_eq!((stats.connections.handled, stats.connections.client.fallback), (3, 1));
        let guard = block.rx.lock(NoHandlers);
        guard.held().mode.store(guard.held(), mode::LANE, Ordering::Relaxed);
        assert_eq!(
            Sums::of(&view, &mut BLOCKS.clone()).report().connections.fallback,
            0,
            "half a lane is a lane"
        );
        assert_eq!(open(&view, &mut BLOCKS.clone()), [1, 0]);
        let process = process(&view, &mut BLOCKS.clone());
        assert_eq!((process.connections, process.lanes, process.tx_bytes), (1, 1, 20_100));
        block.free();
        assert_eq!(Sums::of(&view, &mut BLOCKS.clone()).report().tx.bytes, 100);
    }

    #[test]
    fn a_program_is_counted_once_however_often_it_comes() {
        let (arena, key, view) = arena();
        let mut ledger = Ledger::default();
        let handled =
            |ledger: &Ledger, views: &[Seen<'_>]| ledger.report(views.iter().copied()).connections.handled;
        arena.header().handled[1].store(5, Ordering::Relaxed);
        ledger.begin(key, &view);
        ledger.begin(key, &view);
        assert_eq!(handled(&ledger, &[(key, 7, &view), (key, 7, &view)]), 5);
        ledger.end(key, &view, BLOCKS);
        assert_eq!(handled(&ledger, &[(key, 7, &view)]), 5);
        ledger.end(key, &view, BLOCKS);
        assert_eq!(handled(&ledger, &[]), 5);
        ledger.begin(key, &view);
        arena.header().handled[1].store(6, Ordering::Relaxed);
        assert_eq!(handled(&ledger, &[(key, 7, &view)]), 6);
        ledger.end(key, &view, BLOCKS);
        assert_eq!(handled(&ledger, &[]), 6);
    }

    #[test]
    fn a_reset_lets_the_sums_begin_anew() {
        let (arena, key, view) = arena();
        let mut ledger = Ledger::default();
        ledger.begin(key, &view);
        arena.header().waits[1].sleeps.store(4, Ordering::Relaxed);
        ledger.reset([(key, 7, &view)].into_iter());
        let report = ledger.report([(key, 7, &view)].into_iter());
        assert_eq!((report.sleeps, report.resets), (0, 1), "counts from before are others");
        arena.header().waits[1].sleeps.store(9, Ordering::Relaxed);
        ledger.end(key, &view, BLOCKS);
        assert_eq!(ledger.report(std::iter::empty()).sleeps, 5);
    }

    #[test]
    fn who_is_told_what_was_lately_is_told_when() {
        let (arena, key, view) = arena();
        let (mut ledger, seen) = (Ledger::default(), [(key, 7, &view)]);
        ledger.begin(key, &view);
        let lately = |ledger: &Ledger| {
            let (when, stats) = ledger.report_lately(seen.into_iter());
            (when, stats.sleeps)
        };
        clock::pass(Duration::ZERO);
        let first = lately(&ledger);
        arena.header().waits[0].sleeps.store(4, Ordering::Relaxed);
        clock::pass(LATELY / 2);
        assert_eq!(lately(&ledger), first);
        clock::pass(LATELY * 2);
        assert_eq!(lately(&ledger), (clock::now(), 4));
        ledger.end(key, &view, BLOCKS);
    }

    #[test]
    fn hostile_counters_are_only_wrong() {
        let (arena, _, view) = arena();
        arena.header().high.store(u32::MAX, Ordering::Relaxed);
        arena.header().tx.bytes.store(u64::MAX, Ordering::Relaxed);
        let block = arena.allocate().unwrap();
        block.role.store(200, Ordering::Relaxed);
        let guard = block.tx.lock(NoHandlers);
        guard.held().bytes.store(guard.held(), u64::MAX, Ordering::Relaxed);
        assert_eq!(Sums::of(&view, &mut BLOCKS.clone()).report().tx.bytes, BELIEVED);
    }

    #[test]
    fn what_one_program_says_is_taken_back_with_it() {
        let (arena, key, view) = arena();
        let (liars, liar, lies) = self::arena();
        let mut ledger = Ledger::default();
        ledger.begin(key, &view);
        arena.header().handled[0].store(2000, Ordering::Relaxed);
        ledger.end(key, &view, BLOCKS);
        ledger.begin(liar, &lies);
        liars.header().handled.iter().for_each(|count| count.store(u64::MAX, Ordering::Relaxed));
        ledger.end(liar, &lies, BLOCKS);
        assert_eq!(ledger.report(std::iter::empty()).connections.handled, 2 * BELIEVED + 2000);
        ledger.begin(liar, &lies);
        assert_eq!(ledger.report(std::iter::empty()).connections.handled, 2000);
    }
}
