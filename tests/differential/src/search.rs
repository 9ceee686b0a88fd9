//! The search: programs from a seed, a failure cut to its shortest, and what was reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::{Deserialize, Serialize};

use crate::Search;
use crate::as_c::as_c;
use crate::compare::{Difference, difference};
use crate::op::{self, Call, Op};
use crate::stage::{Run, Stage, Way, built};

/// A program that failed, as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// What it showed when it was found.
    fault: String,
    program: Vec<Op>,
}

/// Faults in one call and way that are cut short; further ones are only counted.
const KNOWN: u64 = 3;
/// How often a program is run before it counts as right, or as TCP's own business.
const TRIES: u32 = 3;
/// How often in a row it must be late: on a busy machine once in a while everything is.
const LATE_TRIES: u32 = 6;

/// The stages, and what was seen on them.
struct Lab {
    tcp: Stage,
    ways: Vec<(Way, Stage)>,
    /// Calls by state of the connection.
    pairs: BTreeMap<(String, [u16; 3]), u64>,
    calls: u64,
    on_lanes: u64,
    undecided: u64,
}

impl Lab {
    fn new(directory: &Path, ways: &[Way]) -> Self {
        let artefacts = built(directory);
        let ways = ways.iter().map(|&way| (way, Stage::new(way, &artefacts))).collect();
        Self {
            tcp: Stage::new(Way::Tcp, &artefacts),
            ways,
            pairs: BTreeMap::new(),
            calls: 0,
            on_lanes: 0,
            undecided: 0,
        }
    }

    /// The difference that a program shows in one of the ways. A difference in time must come each time; any other one once, but not
    /// where TCP differs from itself.
    ///
    /// With `--eager` time is not compared: its calls wait for an end that is about to answer, and here that end is told to do nothing.
    fn judge(&mut self, program: &[Op], way: usize) -> Option<Difference> {
        let is_eager = self.ways[way].0 == Way::Eager;
        let mut late = None;
        for attempt in 0..LATE_TRIES {
            if attempt == TRIES && late.is_none() {
                return None;
            }
            let Ok(tcp) = self.tcp.run(program) else {
                self.undecided += 1;
                return None;
            };
            let found = match self.ways[way].1.run(program) {
                Ok(run) => {
                    self.note(program, &run);
                    difference(program, &tcp, &run)
                }
                Err((at, trouble)) => Some(Difference::Trouble { at, trouble }),
            };
            match found? {
                Difference::Late { .. } if is_eager => return None,
                found @ Difference::Late { .. } => late = Some(found),
                found => {
                    let again = self.tcp.run(program);
                    let same = again.is_ok_and(|again| difference(program, &tcp, &again).is_none());
                    if same {
                        return Some(found);
                    }
                    self.undecided += 1;
                    if attempt + 1 == TRIES {
                        return None;
                    }
                }
            }
        }
        late
    }

    fn note(&mut self, program: &[Op], run: &Run) {
        for (op, outcome) in program.iter().zip(run) {
            let Some(outcome) = outcome else { continue };
            self.calls += 1;
            let Some(state) = outcome.state else { continue };
            self.on_lanes += u64::from(state[1] != 0 || state[2] != 0);
            *self.pairs.entry((name_of(op.call), state)).or_default() += 1;
        }
    }
}

/// A call without its sizes.
fn name_of(call: Call) -> String {
    let text = format!("{call:?}");
    text.split(|c: char| c.is_ascii_digit() || c == ',' || c == '{')
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

pub fn search(arguments: &Search) -> ExitCode {
    let clock =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let seed = arguments.seed.unwrap_or(clock);
    println!("seed {seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (programs, dialogues) = (op::program(arguments.longest, arguments.raw), op::dialogue(12));
    let mut lab = Lab::new(&arguments.built, &arguments.ways);
    let (begin, most) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let (mut made, mut failed) = (0u64, 0u64);
    let mut kinds = BTreeMap::new();
    // Where only one end runs under Shunpike there are no lanes: not so much can differ.
    let shares = |way: &Way| if matches!(way, Way::Client | Way::Server) { 1 } else { 4 };
    let turns: Vec<usize> = (0..lab.ways.len()).flat_map(|way| vec![way; shares(&lab.ways[way].0)]).collect();
    while begin.elapsed() < most {
        let way = turns[made as usize % turns.len()];
        let is_dialogue = made % 8 == 7;
        let mut tree = match is_dialogue {
            true => Box::new(dialogues.new_tree(&mut runner).expect("a program"))
                as Box<dyn ValueTree<Value = Vec<Op>>>,
            false => Box::new(programs.new_tree(&mut runner).expect("a program")),
        };
        made += 1;
        let Some(found) = lab.judge(&tree.current(), way) else { continue };
        failed += 1;
        let name = lab.ways[way].0;
        let times = kinds.entry(format!("{:?} {}", name, kind_of(&tree.current(), &found).1)).or_insert(0u64);
        *times += 1;
        if *times > KNOWN {
            println!("program {made}, {name:?}, once more: {found}");
            continue;
        }
        println!("\nprogram {made}, {name:?}, after {:.0} s: {found}", begin.elapsed().as_secs_f64());
        let (program, found) = shrink(&mut lab, &mut *tree, way, found);
        println!("shortest: {found}");
        for (at, op) in program.iter().enumerate() {
            println!("  {at:3} {:?} {} {:?}", op.side, op.conn, op.call);
        }
        if let Some(directory) = &arguments.keep {
            keep(directory, &program, &format!("{name:?}: {found}"), made);
        }
        if !arguments.go_on {
            break;
        }
    }
    report(&lab, made, begin.elapsed());
    println!("differential: {} passed, {failed} failed", made - failed);
    ExitCode::from(u8::from(failed != 0))
}

/// Cuts a failing program as long as what is left fails at all. A fault that shows now and then is given several chances.
fn shrink(
    lab: &mut Lab,
    tree: &mut dyn ValueTree<Value = Vec<Op>>,
    way: usize,
    found: Difference,
) -> (Vec<Op>, Difference) {
    let (begin, most) = (Instant::now(), Duration::from_secs(60));
    let mut best = (tree.current(), found);
    // What comes after the failing call is not needed.
    best.0.truncate(best.1.at() + 1);
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
                        shorter.truncate(found.at() + 1);
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
    let share = 100 * lab.on_lanes / lab.calls.max(1);
    println!(
        "\n{made} programs in {:.0} s, {:.1} a second; {} calls under Shunpike, {share} % of them on lanes; {} pairs of call and state; \
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
        let found =
            (0..ways.len() * times as usize).find_map(|turn| lab.judge(&kept.program, turn % ways.len()));
        match found {
            Some(found) => {
                failed += 1;
                println!("{}: {found} (when it was found: {})", file.display(), kept.fault);
            }
            None => println!("{}: as on TCP", file.display()),
        }
    }
    println!("differential: {} passed, {failed} failed", files.len() - failed);
    ExitCode::from(u8::from(failed != 0))
}
