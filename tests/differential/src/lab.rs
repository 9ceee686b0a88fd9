//! Where programs are judged: a stage for TCP and one for each way, and what was seen on them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use hdrhistogram::Histogram;

use crate::compare::{Difference, Late, difference, is_at_once};
use crate::errors::Failure;
use crate::op::{CUTS, Op};
use crate::pairs::{Pair, name_of};
use crate::stage::{Run, Stage, Way, built};
use crate::team::Trouble;

/// How often a program in which TCP differed from itself is run again.
const TRIES: u32 = 3;
/// How often in a row it must show what a busy machine alone can show.
const TRIES_OF_TIME: u32 = 6;
/// What is as late as a timer of TCP's makes it (its delayed ACK: 40 ms) shows where two processes meet at a certain moment only: a call must
/// show it so many times of so many.
const SIGHTS_OF_TIMERS: u32 = 3;
const TRIES_OF_TIMERS: u32 = 14;
/// What is late at the least, where TCP takes its time: half of its delayed ACK;
const LEAST_LATE_NS: u64 = 20_000_000;
/// ... and where it answers at once.
const LEAST_LATE_AT_ONCE_NS: u64 = 5_000_000;

/// What was seen.
pub struct Seen {
    pub pairs: BTreeMap<Pair, u64>,
    /// Edges of the library's code that some program passed, and how many there are.
    edges: BTreeSet<u32>,
    all_edges: i64,
    undecided: u64,
    /// Calls that were cut between two instructions.
    windows: u64,
}

impl Seen {
    /// What two jobs saw.
    pub fn and(mut self, other: Self) -> Self {
        for (pair, times) in other.pairs {
            *self.pairs.entry(pair).or_default() += times;
        }
        self.edges.extend(other.edges);
        self.all_edges = self.all_edges.max(other.all_edges);
        self.undecided += other.undecided;
        self.windows += other.windows;
        self
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pairs of call and state; ", self.pairs.len())?;
        if self.all_edges > 0 {
            write!(f, "{} of {} edges of code; ", self.edges.len(), self.all_edges)?;
        }
        write!(f, "{} windows between two instructions; ", self.windows)?;
        write!(f, "{} undecided, as TCP differs from itself", self.undecided)
    }
}

/// The stages, and what was seen on them.
pub struct Lab {
    tcp: Stage,
    ways: Vec<(Way, Stage)>,
    /// How long TCP's calls took, nanoseconds; and of those that it answers at once, mostly, how long they took.
    times: Histogram<u64>,
    at_once: Histogram<u64>,
    pairs: BTreeMap<Pair, u64>,
    /// Calls on connections of which one end at least is under Shunpike.
    pub calls: u64,
    pub on_lanes: u64,
    /// Runs in which TCP differed from itself.
    undecided: u64,
    /// What they showed.
    doubts: Vec<String>,
}

impl Lab {
    pub fn new(directory: &Path, ways: &[Way]) -> Self {
        let artefacts = built(directory);
        Self {
            tcp: Stage::new(Way::Tcp, &artefacts),
            ways: ways.iter().map(|&way| (way, Stage::new(way, &artefacts))).collect(),
            times: Histogram::new(2).expect("two digits"),
            at_once: Histogram::new(2).expect("two digits"),
            pairs: BTreeMap::new(),
            calls: 0,
            on_lanes: 0,
            undecided: 0,
            doubts: Vec::new(),
        }
    }

    pub fn seen(&self) -> Seen {
        Seen {
            pairs: self.pairs.clone(),
            edges: self.ways.iter().flat_map(|(_, stage)| stage.edges.iter().copied()).collect(),
            all_edges: self.ways.iter().map(|(_, stage)| stage.all_edges).max().unwrap_or(0),
            undecided: self.undecided,
            windows: self.windows(),
        }
    }

    fn windows(&self) -> u64 {
        self.ways.iter().map(|(_, stage)| stage.windows).sum()
    }

    /// Pairs that were reached, and edges in each way: it grows with what is new.
    pub fn reached(&self) -> usize {
        self.pairs.len() + self.ways.iter().map(|(_, stage)| stage.edges.len()).sum::<usize>()
    }

    /// System calls of the library's own that fail in the next programs. On TCP there are none, and its processes are as new.
    pub fn fail(&mut self, failures: &[Failure]) {
        self.tcp.failures = Some(Vec::new());
        for (_, stage) in &mut self.ways {
            stage.failures = Some(failures.to_vec());
        }
    }

    /// None fail any more.
    pub fn pass(&mut self) {
        let stages = self.ways.iter_mut().map(|(_, stage)| stage);
        for stage in stages.chain([&mut self.tcp]).filter(|stage| stage.failures.is_some()) {
            stage.failures = None;
            stage.renew();
        }
    }

    fn doubt(&mut self, why: String) {
        self.undecided += 1;
        self.doubts.push(why);
    }

    /// What was undecided since the last call.
    pub fn doubts(&mut self) -> Vec<String> {
        std::mem::take(&mut self.doubts)
    }

    pub fn way(&self, number: usize) -> Way {
        self.ways[number].0
    }

    /// What is late: more than all but a thousandth of TCP's own calls took in this run.
    fn late(&self) -> Late {
        let bound =
            |times: &Histogram<u64>, least| (2 * times.value_at_quantile(0.999)).clamp(least, Late::MOST_NS);
        Late {
            at_once: bound(&self.at_once, LEAST_LATE_AT_ONCE_NS),
            otherwise: bound(&self.times, LEAST_LATE_NS),
        }
    }

    /// TCP's answers; where calls are made within others, in either order. None, and a doubt, where TCP had trouble.
    fn reference(&mut self, program: &[Op]) -> Option<Vec<Run>> {
        let cuts = program.iter().filter(|op| op.cut.is_some()).count().min(CUTS);
        let mut attempt = 1;
        let all: Vec<Run> = loop {
            match (0..1 << cuts).map(|turns| self.tcp.run(program, Some(turns))).collect() {
                Ok(all) => break all,
                // Only what never ends hangs: a machine may stand still.
                Err((_, trouble)) if trouble == Trouble::Hangs && attempt < TRIES => attempt += 1,
                Err((at, trouble)) => {
                    self.doubt(format!("on TCP, {}", Difference::Trouble { at, trouble }));
                    return None;
                }
            }
        };
        for (op, outcome) in program.iter().zip(&all[0]) {
            let Some(outcome) = outcome else { continue };
            self.times.saturating_record(outcome.ns.max(1));
            if is_at_once(op.call, outcome) {
                self.at_once.saturating_record(outcome.ns.max(1));
            }
        }
        Some(all)
    }

    /// Runs a program in one of the ways, and compares it with TCP's runs: the order of them that fits best.
    fn difference(&mut self, program: &[Op], way: usize, tcp: &[Run]) -> Option<Difference> {
        let late = self.late();
        let run = match self.ways[way].1.run(program, None) {
            Ok(run) => run,
            Err((at, trouble)) => return Some(Difference::Trouble { at, trouble }),
        };
        self.note(program, &run);
        let all = tcp.iter().map(|tcp| difference(program, tcp, &run, late));
        let fit = |found: &Difference| (!found.is_of_time(), std::cmp::Reverse(found.at()));
        all.min_by_key(|found| found.as_ref().map(fit)).flatten()
    }

    /// Whether TCP differs from itself, so that what was found is in doubt.
    fn differs_itself(&mut self, program: &[Op], way: usize, tcp: &Run, found: &Difference) -> bool {
        let itself = match self.tcp.run(program, Some(0)) {
            Ok(again) => difference(program, tcp, &again, Late::MOST),
            Err((at, trouble)) => Some(Difference::Trouble { at, trouble }),
        };
        if let Some(itself) = &itself {
            self.doubt(format!("TCP and TCP: {itself}; TCP and {:?}: {found}", self.way(way)));
        }
        itself.is_some()
    }

    /// The difference that a program shows in one of the ways. One in time must come each time, or where it is a timer's, some times; any other
    /// one once, but not where TCP differs from itself.
    ///
    /// With `--eager` time is not compared: its calls wait for an end that is about to answer, and here that end is told to do nothing.
    /// Nor is it of TCP with itself: that tells of the machine only.
    pub fn judge(&mut self, program: &[Op], way: usize) -> Option<Difference> {
        let has_no_time = matches!(self.way(way), Way::Eager | Way::Tcp);
        let mut is_always_late = true;
        let mut timers: BTreeMap<usize, u32> = BTreeMap::new();
        // The longest that each call took on TCP.
        let mut longest: Vec<u64> = vec![0; program.len()];
        for attempt in 0..TRIES_OF_TIMERS {
            let may_be_late = is_always_late && attempt < TRIES_OF_TIME || !timers.is_empty();
            if attempt >= TRIES && !may_be_late {
                return None;
            }
            let tcp = self.reference(program)?;
            for (longest, outcome) in longest.iter_mut().zip(&tcp[0]) {
                *longest = (*longest).max(outcome.as_ref().map_or(0, |outcome| outcome.ns));
            }
            let found = self.difference(program, way, &tcp);
            let Some(found) = found else {
                is_always_late = false;
                if timers.is_empty() {
                    return None;
                }
                continue;
            };
            match found {
                found if found.is_of_time() => {
                    if has_no_time {
                        return None;
                    }
                    if found.is_a_timers(longest[found.at()]) {
                        let times = timers.entry(found.at()).or_default();
                        *times += 1;
                        if *times >= SIGHTS_OF_TIMERS {
                            return Some(found);
                        }
                    }
                    if is_always_late && attempt + 1 == TRIES_OF_TIME {
                        return Some(found);
                    }
                }
                // Where nothing but the machine can be slow, only what never ends hangs.
                found if self.way(way) == Way::Tcp && found.is_hang() && attempt + 1 < TRIES => {}
                found => {
                    if !self.differs_itself(program, way, &tcp[0], &found) {
                        return Some(found);
                    }
                    if attempt + 1 >= TRIES {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Judges a program with its first call that is cut, cut after each number of instructions in turn, `step` apart: until one shows a
    /// difference, the call is over before, or `is_over`. The program is left as it was run last.
    pub fn judge_windows(
        &mut self,
        program: &mut [Op],
        way: usize,
        step: u16,
        is_over: impl Fn() -> bool,
    ) -> Option<Difference> {
        let at = program.iter().position(|op| op.cut.is_some())?;
        // A window makes no difference to TCP, which is asked once.
        let tcp = self.reference(program)?;
        for steps in (1..=u16::MAX).step_by(step.max(1).into()) {
            program[at].cut = Some(steps);
            let so_far = self.windows();
            let found = match self.difference(program, way, &tcp) {
                Some(found) if found.is_of_time() => self.judge(program, way),
                Some(found) if self.differs_itself(program, way, &tcp[0], &found) => return None,
                found => found,
            };
            if found.is_some() || self.windows() == so_far || is_over() {
                return found;
            }
        }
        None
    }

    fn note(&mut self, program: &[Op], run: &Run) {
        for (op, outcome) in program.iter().zip(run) {
            let Some(outcome) = outcome else { continue };
            self.calls += outcome.calls[0];
            self.on_lanes += outcome.calls[1];
            let Some(state) = outcome.state else { continue };
            *self.pairs.entry(Pair(name_of(op.call), state)).or_default() += 1;
        }
    }
}
