//! The search: programs from a seed, a failure cut to its shortest, and what was reached.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::prop;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::{Deserialize, Serialize};

use crate::Search;
use crate::as_c::as_c;
use crate::compare::Difference;
use crate::lab::{Lab, name_of};
use crate::op::{self, Op};
use crate::stage::Way;

/// A program that failed, as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// What it showed when it was found.
    fault: String,
    program: Vec<Op>,
}

/// Faults in one call and way that are cut short; further ones are only counted.
const KNOWN: u64 = 3;
/// How often a long run says how far it has come.
const TELL: Duration = Duration::from_secs(30);

/// Programs from a seed. Where the seed is a new one, those that reached a new pair of call and state, or a new edge of the library's code,
/// are gone on from.
struct Maker {
    runner: TestRunner,
    longest: usize,
    raw: bool,
    guided: bool,
    reached: Vec<Vec<Op>>,
    made: u64,
}

impl Maker {
    fn new(arguments: &Search, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Self {
            runner: TestRunner::new_with_rng(Config::default(), rng),
            longest: arguments.longest,
            raw: arguments.raw,
            guided: arguments.seed.is_none(),
            reached: Vec::new(),
            made: 0,
        }
    }

    fn make<T: std::fmt::Debug>(&mut self, what: impl Strategy<Value = T>) -> T {
        what.new_tree(&mut self.runner).expect("it always can").current()
    }

    fn next(&mut self) -> Vec<Op> {
        self.made += 1;
        if self.made % 8 == 7 {
            return self.make(op::dialogue(12));
        }
        if self.guided && !self.reached.is_empty() && self.made.is_multiple_of(2) {
            return self.gone_on();
        }
        let (longest, raw) = (self.longest, self.raw);
        self.make(op::program(longest, raw))
    }

    /// A program that reached something, to a place within it, with other calls behind that, and mostly its rest.
    fn gone_on(&mut self) -> Vec<Op> {
        let number = self.make(0..self.reached.len());
        let old = self.reached[number].clone();
        let (at, keeps_rest) = self.make((1..=old.len(), prop::bool::weighted(0.7)));
        let raw = self.raw;
        let new = self.make(prop::collection::vec(op::part(raw), 1..8));
        let rest = if keeps_rest { &old[at..] } else { &[] };
        op::few_cuts(
            old[..at].iter().copied().chain(new.into_iter().flatten()).chain(rest.iter().copied()).collect(),
        )
    }
}

pub fn search(arguments: &Search) -> ExitCode {
    let clock =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let seed = arguments.seed.unwrap_or(clock);
    println!("seed {seed}");
    let mut maker = Maker::new(arguments, seed);
    let mut lab = Lab::new(&arguments.built, &arguments.ways);
    let (begin, most) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let mut told = begin;
    let mut failed = 0u64;
    let mut kinds = BTreeMap::new();
    // Where only one end runs under Shunpike there are no lanes: not so much can differ.
    let shares = |way: &Way| if matches!(way, Way::Client | Way::Server) { 1 } else { 4 };
    let turns: Vec<usize> =
        arguments.ways.iter().enumerate().flat_map(|(number, way)| vec![number; shares(way)]).collect();
    while begin.elapsed() < most {
        if told.elapsed() > TELL {
            told = Instant::now();
            report(&lab, maker.made, begin.elapsed());
        }
        let way = turns[maker.made as usize % turns.len()];
        let program = maker.next();
        let reached = lab.reached();
        let found = lab.judge(&program, way);
        // With Nagle's algorithm TCP holds back what a lane shows at once: what a dialogue reached is for dialogues.
        if lab.reached() > reached && !op::is_dialogue(&program) {
            maker.reached.push(program.clone());
        }
        let Some(found) = found else { continue };
        let made = maker.made;
        failed += 1;
        let name = lab.way(way);
        let times = kinds.entry(format!("{:?} {}", name, kind_of(&program, &found).1)).or_insert(0u64);
        *times += 1;
        if *times > KNOWN {
            println!("program {made}, {name:?}, once more: {found}");
            continue;
        }
        println!("\nprogram {made}, {name:?}, after {:.0} s: {found}", begin.elapsed().as_secs_f64());
        let (program, found) = shrink(&mut lab, program, way, found);
        println!("shortest: {found}");
        for (at, op) in program.iter().enumerate() {
            let cut = op.cut.map_or(String::new(), |steps| format!(", cut after {steps} instructions"));
            println!("  {at:3} {:?} {} {:?}{cut}", op.side, op.conn, op.call);
        }
        if let Some(directory) = &arguments.keep {
            keep(directory, &program, &format!("{name:?}: {found}"), made);
        }
        if !arguments.go_on {
            break;
        }
    }
    report(&lab, maker.made, begin.elapsed());
    let missing = arguments.reaches.as_deref().map_or(0, |list| not_reached(&lab, list));
    if let Some(path) = &arguments.pairs {
        write_pairs(&lab, path);
    }
    println!("differential: {} passed, {} failed", maker.made - failed, failed + missing);
    ExitCode::from(u8::from(failed + missing != 0))
}

/// Pairs of call and state that a list names and the run did not come to.
fn not_reached(lab: &Lab, list: &Path) -> u64 {
    let reached: BTreeSet<String> = lab.pairs.keys().map(ToString::to_string).collect();
    let text = std::fs::read_to_string(list).expect("a list of pairs");
    let missing: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !reached.contains(*line)).collect();
    for pair in &missing {
        println!("not reached: {pair} (call, phase, mode of the receiving and of the sending half)");
    }
    missing.len() as u64
}

/// The pairs and how often each was reached, the rarest last.
fn write_pairs(lab: &Lab, path: &Path) {
    let mut all: Vec<_> = lab.pairs.iter().collect();
    all.sort_by_key(|&(pair, &times)| (std::cmp::Reverse(times), pair));
    let text: String = all.into_iter().map(|(pair, times)| format!("{times} {pair}\n")).collect();
    std::fs::write(path, text).expect("the pairs can be written");
}

/// Cuts a failing program as long as what is left fails at all. A fault that shows now and then is given several chances.
fn shrink(lab: &mut Lab, program: Vec<Op>, way: usize, found: Difference) -> (Vec<Op>, Difference) {
    let (begin, most) = (Instant::now(), Duration::from_secs(60));
    let mut best = (program, found);
    // What comes after the failing call is not needed, but for what is made meanwhile.
    best.0.truncate(best.1.at() + 2);
    let kind = kind_of(&best.0, &best.1);
    let fails = |lab: &mut Lab, program: &[Op]| {
        (0..4).find_map(|_| lab.judge(program, way).filter(|found| kind_of(program, found) == kind))
    };
    let mut more = true;
    while more && begin.elapsed() < most {
        more = false;
        let mut size = best.0.len() / 2;
        while size >= 1 && begin.elapsed() < most {
            let mut at = 1;
            while at + size <= best.0.len() && begin.elapsed() < most {
                let mut shorter = best.0.clone();
                shorter.drain(at..at + size);
                match fails(lab, &shorter) {
                    Some(found) => {
                        shorter.truncate(found.at() + 2);
                        best = (shorter, found);
                        more = true;
                    }
                    None => at += size,
                }
            }
            size /= 2;
        }
    }
    best
}

/// What a difference is about: two of a kind are taken for one fault.
fn kind_of(program: &[Op], found: &Difference) -> (std::mem::Discriminant<Difference>, String) {
    (std::mem::discriminant(found), name_of(program[found.at()].call))
}

fn keep(directory: &Path, program: &[Op], fault: &str, number: u64) {
    let kept = Kept { fault: fault.to_owned(), program: program.to_vec() };
    let path = directory.join(format!("found-{number}.json"));
    let text = serde_json::to_string_pretty(&kept).expect("a program");
    match std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text)) {
        Ok(()) => {
            let c = path.with_extension("c");
            match std::fs::write(&c, as_c(program, fault)) {
                Ok(()) => println!("kept as {}, and as {}", path.display(), c.display()),
                Err(error) => println!("{}: {error}", c.display()),
            }
        }
        Err(error) => println!("could not be kept as {}: {error}", path.display()),
    }
}

fn report(lab: &Lab, made: u64, took: Duration) {
    let edges = match lab.edges() {
        (_, 0) => String::new(),
        (passed, all) => format!("{passed} of {all} edges of code; "),
    };
    let share = 100 * lab.on_lanes / lab.calls.max(1);
    println!(
        "\n{made} programs in {:.0} s, {:.1} a second; {} calls under Shunpike, {share} % of them on lanes; {} pairs of call and state; {edges}\
         {} undecided, as TCP differs from itself",
        took.as_secs_f64(),
        made as f64 / took.as_secs_f64(),
        lab.calls,
        lab.pairs.len(),
        lab.undecided,
    );
}

pub fn replay(directory: &Path, times: u32, files: &[PathBuf]) -> ExitCode {
    let ways = [Way::Earned, Way::Eager, Way::Copy, Way::Client, Way::Server];
    let mut lab = Lab::new(directory, &ways);
    let mut failed = 0;
    for file in files {
        let text = std::fs::read_to_string(file).expect("a kept program");
        let kept: Kept = serde_json::from_str(&text).expect("a kept program");
        let found = (0..ways.len() * times as usize).map(|turn| turn % ways.len()).find_map(|way| {
            let found = lab.judge(&kept.program, way)?;
            Some((ways[way], found))
        });
        match found {
            Some((way, found)) => {
                failed += 1;
                println!("{}: {way:?}: {found} (when it was found: {})", file.display(), kept.fault);
            }
            None => println!("{}: as on TCP", file.display()),
        }
    }
    println!("differential: {} passed, {failed} failed", files.len() - failed);
    ExitCode::from(u8::from(failed != 0))
}
