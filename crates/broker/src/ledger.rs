//! Sums over all programs: those that run, as they were when they were last looked at, and those that are gone.

use crate::report::{Process, Stats};
use crate::stats::{self, ArenaKey, BELIEVED, Look, Sums};
use shunpike_shm::arena::BLOCKS;
use std::collections::HashMap;

/// Blocks of one user that are looked at for one answer: one program's connections, or many programs' that have as many
/// together. Those beyond are counted when they are gone.
const OF_USER: usize = BLOCKS;
/// Blocks of all users that are looked at for one answer: where they are more than so many, each has its part.
const OF_ALL: usize = 16 * OF_USER;

/// How many blocks of each user may still be looked at.
pub struct Looks {
    each: usize,
    left: HashMap<u32, usize>,
}

impl Looks {
    /// Where so many users have programs.
    pub fn among(users: usize) -> Self {
        Self { each: (OF_ALL / users.max(1)).min(OF_USER), left: HashMap::new() }
    }

    /// Those of this user.
    pub fn of(&mut self, user: u32) -> &mut usize {
        self.left.entry(user).or_insert(self.each)
    }
}

/// A program whose arena is open.
struct Account {
    user: u32,
    /// Sessions that share the arena.
    sessions: usize,
    /// What it said last: that much of it is in the sums.
    said: Sums,
    /// Its connection ends, with a lane and without.
    open: [u64; 2],
}

/// The sums of the broker's life, or since they were reset.
#[derive(Default)]
pub struct Ledger {
    open: HashMap<ArenaKey, Account>,
    /// What all have said, gone ones too.
    sums: Sums,
    /// What they said at the last reset,
    baseline: Sums,
    /// of so many.
    resets: u64,
    /// Arenas whose programs may come back, by the process and what it has said: they go on from there.
    departed: HashMap<ArenaKey, (u32, Sums)>,
    /// How much of each user's was believed.
    believed: HashMap<u32, u64>,
}

/// Departed arenas that are remembered. A program that comes back after more than that is counted twice.
const DEPARTED: usize = 256;

impl Ledger {
    /// A session with this arena begins, which process `pid` made.
    pub fn begin(&mut self, key: ArenaKey, user: u32, pid: u32) {
        let departed = &mut self.departed;
        let account = self.open.entry(key).or_insert_with(|| {
            let said = departed.remove(&key).filter(|(before, _)| *before == pid);
            Account {
                user,
                sessions: 0,
                said: said.map_or_else(Sums::default, |(_, sums)| sums),
                open: [0; 2],
            }
        });
        account.sessions += 1;
    }

    /// A session with this arena ended. Whether nobody has the arena any more, so that it is to be looked at for the last time.
    pub fn end(&mut self, key: ArenaKey) -> bool {
        self.open.get_mut(&key).is_some_and(|account| {
            account.sessions -= 1;
            account.sessions == 0
        })
    }

    /// What an arena says now.
    pub fn take(&mut self, key: ArenaKey, look: Look) {
        let Some(account) = self.open.get_mut(&key) else { return };
        let believed = self.believed.entry(account.user).or_default();
        let (says, open) = look.end();
        let says = says.after(&account.said, BELIEVED - *believed);
        *believed += says.growth_since(&account.said);
        self.sums.replace(&account.said, &says);
        (account.said, account.open) = (says, open);
    }

    /// What it said was its last, if nobody has come back to it meanwhile.
    pub fn close(&mut self, key: ArenaKey, pid: u32) {
        if self.open.get(&key).is_none_or(|account| account.sessions > 0) {
            return;
        }
        if self.departed.len() >= DEPARTED {
            self.departed.clear();
        }
        self.departed.extend(self.open.remove(&key).map(|account| (key, (pid, account.said))));
    }

    /// The sums since the last reset.
    pub fn report(&self) -> Stats {
        let mut sums = self.sums.clone();
        sums.subtract(&self.baseline);
        Stats { resets: self.resets, ..sums.report() }
    }

    /// Lets the sums begin anew.
    pub fn reset(&mut self) {
        self.baseline = self.sums.clone();
        self.resets += 1;
    }

    /// The sums since the broker began.
    pub fn total(&self) -> Stats {
        self.sums.report()
    }

    /// Bytes moved on lanes since the broker began.
    pub fn moved(&self) -> u64 {
        self.sums.bytes_sent()
    }

    /// Connection ends that are open: with a lane, and without.
    pub fn open(&self) -> [u64; 2] {
        self.open.values().fold([0; 2], |[lanes, plain], account| {
            let [more, others] = account.open;
            [lanes + more, plain + others]
        })
    }

    /// What a program has done, but for its name.
    pub fn process(&self, key: ArenaKey) -> Process {
        self.open
            .get(&key)
            .map_or_else(Process::default, |account| stats::process(&account.said, account.open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use shunpike_shm::arena::{Arena, ArenaView};
    use std::sync::atomic::Ordering;

    const ITS: u32 = 1000;
    const PID: u32 = 7;

    fn arena() -> (Arena, ArenaKey) {
        let arena = Arena::create(PID).unwrap();
        let key = ArenaKey::of(arena.fd().as_fd()).unwrap();
        (arena, key)
    }

    fn look(ledger: &mut Ledger, arena: &Arena, key: ArenaKey) {
        let view = ArenaView::of(arena.fd().try_clone().unwrap()).unwrap();
        let mut look = Look::begin(&view);
        while look.go_on(&view, BLOCKS) == 0 {}
        ledger.take(key, look);
    }

    fn end(ledger: &mut Ledger, arena: &Arena, key: ArenaKey) {
        if ledger.end(key) {
            look(ledger, arena, key);
            ledger.close(key, PID);
        }
    }

    fn handled(ledger: &Ledger) -> u64 {
        ledger.report().connections.handled
    }

    #[test]
    fn a_program_is_counted_once_however_often_it_comes() {
        let (arena, key) = arena();
        let mut ledger = Ledger::default();
        arena.header().handled[1].store(5, Ordering::Relaxed);
        ledger.begin(key, ITS, PID);
        ledger.begin(key, ITS, PID);
        look(&mut ledger, &arena, key);
        assert_eq!(handled(&ledger), 5);
        end(&mut ledger, &arena, key);
        assert!(ledger.open.contains_key(&key), "another session has it");
        end(&mut ledger, &arena, key);
        assert_eq!((handled(&ledger), ledger.open.len()), (5, 0));
        ledger.begin(key, ITS, PID);
        assert_eq!(handled(&ledger), 5);
        arena.header().handled[1].store(6, Ordering::Relaxed);
        end(&mut ledger, &arena, key);
        assert_eq!(handled(&ledger), 6);
        ledger.begin(key, ITS, PID + 1);
        look(&mut ledger, &arena, key);
        assert_eq!(handled(&ledger), 12, "another process");
    }

    #[test]
    fn users_share_what_is_looked_at() {
        assert_eq!(*Looks::among(0).of(1), BLOCKS);
        assert_eq!(*Looks::among(16).of(1), BLOCKS);
        assert_eq!(*Looks::among(64).of(1), BLOCKS / 4);
    }

    #[test]
    fn who_comes_back_before_the_last_look_is_not_gone() {
        let (arena, key) = arena();
        let mut ledger = Ledger::default();
        arena.header().handled[1].store(5, Ordering::Relaxed);
        ledger.begin(key, ITS, PID);
        assert!(ledger.end(key));
        ledger.begin(key, ITS, PID);
        look(&mut ledger, &arena, key);
        ledger.close(key, PID);
        assert_eq!((handled(&ledger), ledger.open.len(), ledger.departed.len()), (5, 1, 0));
    }

    #[test]
    fn a_reset_lets_the_sums_begin_anew() {
        let (arena, key) = arena();
        let mut ledger = Ledger::default();
        ledger.begin(key, ITS, PID);
        arena.header().waits[1].sleeps.store(4, Ordering::Relaxed);
        look(&mut ledger, &arena, key);
        ledger.reset();
        let report = ledger.report();
        assert_eq!((report.sleeps, report.resets), (0, 1), "counts from before are others");
        arena.header().waits[1].sleeps.store(9, Ordering::Relaxed);
        end(&mut ledger, &arena, key);
        assert_eq!((ledger.report().sleeps, ledger.total().sleeps), (5, 9));
    }

    /// Two hundred and fifty-six programs that said to have counted further than anybody can made the sums those of nobody.
    #[test]
    fn sums_neither_wrap_nor_go_back_whatever_programs_say() {
        let (honest, key) = arena();
        let mut ledger = Ledger::default();
        ledger.begin(key, ITS, PID);
        honest.header().handled[0].store(2000, Ordering::Relaxed);
        look(&mut ledger, &honest, key);
        let mut before = handled(&ledger);
        for n in 0..1000 {
            let (liar, its) = arena();
            liar.header().high.store(u32::MAX, Ordering::Relaxed);
            let says = if n % 2 == 0 { u64::MAX } else { 1 << 56 };
            liar.header().handled.iter().for_each(|count| count.store(says, Ordering::Relaxed));
            ledger.begin(its, ITS + 1, PID);
            look(&mut ledger, &liar, its);
            liar.header().handled.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            look(&mut ledger, &liar, its);
            assert!(handled(&ledger) >= before, "{before} and then {}", handled(&ledger));
            before = handled(&ledger);
            end(&mut ledger, &liar, its);
        }
        assert_eq!(handled(&ledger), 2 * BELIEVED + 2000, "of one user so much is believed");
        honest.header().handled[0].store(2001, Ordering::Relaxed);
        end(&mut ledger, &honest, key);
        assert_eq!(handled(&ledger), 2 * BELIEVED + 2001, "and others' count goes on");
    }

    #[test]
    fn many_users_lies_make_no_histogram_that_cannot_be_added_up() {
        let (liar, key) = arena();
        liar.header().waits[0].wakes.iter().for_each(|count| count.store(u64::MAX, Ordering::Relaxed));
        let mut ledger = Ledger::default();
        for user in 0..100 {
            ledger.begin(key, user, PID);
            look(&mut ledger, &liar, key);
            ledger.end(key);
            ledger.close(key, PID + user);
        }
        let classes = ledger.report().wakeups.classes;
        assert!(classes.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)).is_some(), "{classes:?}");
    }
}
