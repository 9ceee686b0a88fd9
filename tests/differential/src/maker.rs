//! Programs, made from a seed.

use proptest::prelude::prop;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::Search;
use crate::errors::{self, Failure};
use crate::generate;
use crate::op::{self, Call, Op};
use crate::stage::Way;

/// Programs from a seed. Where the seed is a new one, those that reached a new pair of call and state, or a new edge of the library's code,
/// are gone on from.
pub struct Maker {
    runner: TestRunner,
    longest: usize,
    raw: bool,
    errors: bool,
    windows: bool,
    guided: bool,
    /// All ways are TCP.
    on_tcp: bool,
    reached: Vec<Vec<Op>>,
    pub made: u64,
    /// What goes wrong in the last one.
    pub failures: Vec<Failure>,
}

impl Maker {
    pub fn new(arguments: &Search, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Self {
            runner: TestRunner::new_with_rng(Config::default(), rng),
            longest: arguments.longest,
            raw: arguments.raw,
            errors: arguments.errors,
            windows: arguments.windows.is_some(),
            guided: arguments.seed.is_none(),
            on_tcp: arguments.ways.iter().all(|&way| way == Way::Tcp),
            reached: Vec::new(),
            made: 0,
            failures: Vec::new(),
        }
    }

    fn make<T: std::fmt::Debug>(&mut self, what: impl Strategy<Value = T>) -> T {
        what.new_tree(&mut self.runner).expect("it always can").current()
    }

    pub fn next(&mut self) -> Vec<Op> {
        self.made += 1;
        let program =
            if self.errors && self.made.is_multiple_of(2) { self.make(errors::waits()) } else { self.any() };
        self.failures = if self.errors { self.make(errors::failures()) } else { Vec::new() };
        match program {
            program if self.on_tcp => brief(program),
            program if self.errors => errors::tame(program),
            program => program,
        }
    }

    fn any(&mut self) -> Vec<Op> {
        if self.windows {
            return self.make(generate::windows());
        }
        match self.made % 16 {
            7 => return self.make(generate::dialogue(12)),
            15 => return self.make(generate::held()),
            3 => return self.make(generate::fresh()),
            5 => return self.make(generate::switch()),
            11 => return self.make(generate::unseen(12)),
            _ => {}
        }
        if self.guided && !self.reached.is_empty() && self.made.is_multiple_of(2) {
            return self.gone_on();
        }
        let (longest, raw) = (self.longest, self.raw);
        self.make(generate::program(longest, raw))
    }

    /// A program that reached something new.
    pub fn keep(&mut self, program: &[Op]) {
        // With Nagle's algorithm TCP holds back what a lane shows at once: what a dialogue reached is for dialogues. And who waits unseen
        // must wait so all the time.
        if self.guided && !op::is_dialogue(program) && (self.raw || !op::is_raw(program)) {
            self.reached.push(program.to_vec());
        }
    }

    /// A program that reached something, to a place within it, with other calls behind that, and mostly its rest.
    fn gone_on(&mut self) -> Vec<Op> {
        let number = self.make(0..self.reached.len());
        let old = self.reached[number].clone();
        // Behind the exchanges by which a lane opens, where it has them.
        let least = old.len().min(4);
        let (at, keeps_rest) = self.make((least..=old.len(), prop::bool::weighted(0.7)));
        let raw = self.raw;
        let new = self.make(prop::collection::vec(generate::part(raw), 1..8));
        let rest = if keeps_rest { old[at..].to_vec() } else { Vec::new() };
        op::few_cuts(generate::joined(std::iter::once(old[..at].to_vec()).chain(new).chain([rest])))
    }
}

/// The program with few exchanges each: many are for a lane to open.
pub fn short(mut program: Vec<Op>) -> Vec<Op> {
    const ROUNDS: u16 = 3;
    for op in &mut program {
        if let Call::Echo { rounds, .. } | Call::Pour { rounds, .. } | Call::Exchange { rounds, .. } =
            &mut op.call
        {
            *rounds = (*rounds).min(ROUNDS);
        }
    }
    program
}

/// The program without what only lanes need: many exchanges, and what is done to Shunpike.
fn brief(program: Vec<Op>) -> Vec<Op> {
    // What TCP does it does within one system call.
    const STEPS: u16 = 128;
    let mut all = short(program);
    for op in &mut all {
        op.cut = op.cut.map(|steps| 1 + steps % STEPS);
    }
    all.retain(|op| !matches!(op.call, Call::Meddle(_)));
    all
}
