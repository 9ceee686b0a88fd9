//! The search: programs from a seed, a failure cut to its shortest, and what was reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::Search;
use crate::as_c::as_c;
use crate::calls;
use crate::compare::Difference;
use crate::errors::Failure;
use crate::lab::{Lab, Seen};
use crate::maker::{Maker, short};
use crate::op::Op;
use crate::pairs::{self, name_of};
use crate::stage::Way;
use crate::warden;

/// A program that failed, as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// What it showed when it was found.
    fault: String,
    program: Vec<Op>,
    /// System calls of the library's own that fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<Failure>,
}

impl Kept {
    fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("a kept program");
        serde_json::from_str(&text).expect("a kept program")
    }
}

/// A kept program, and what it showed.
#[cfg(test)]
pub fn read_kept(file: &Path) -> (Vec<Op>, String) {
    let Kept { program, fault, .. } = Kept::read(file);
    (program, fault)
}

/// How often a long run says how far it has come.
const TELL: Duration = Duration::from_secs(30);

/// How far all jobs have come.
struct Progress {
    begin: Instant,
    made: AtomicU64,
    failed: AtomicU64,
    calls: AtomicU64,
    on_lanes: AtomicU64,
    /// Failures of each way and kind.
    kinds: Mutex<BTreeMap<String, u64>>,
}

impl Progress {
    fn is_over(&self, arguments: &Search) -> bool {
        let is_enough = |most: Option<u64>, so_far: &AtomicU64| {
            most.is_some_and(|most| so_far.load(Ordering::Relaxed) >= most)
        };
        is_enough(arguments.programs, &self.made)
            || is_enough(arguments.calls, &self.on_lanes)
            || arguments.seconds.is_some_and(|most| self.begin.elapsed().as_secs() >= most)
            || !arguments.go_on && self.failed.load(Ordering::Relaxed) > 0
    }

    /// Calls on lanes, in a hundred.
    fn share(&self) -> u64 {
        100 * self.on_lanes.load(Ordering::Relaxed) / self.calls.load(Ordering::Relaxed).max(1)
    }

    /// 1 where less of the calls were made on lanes than there must be.
    fn is_share_too_small(&self, arguments: &Search) -> u64 {
        let Some(least) = arguments.share.filter(|&least| self.share() < least) else { return 0 };
        println!("only {} % of the calls were made on lanes, which must be {least} %", self.share());
        1
    }

    fn report(&self, seen: &str) {
        let [made, failed, calls, on_lanes] =
            [&self.made, &self.failed, &self.calls, &self.on_lanes].map(|one| one.load(Ordering::Relaxed));
        let seconds = self.begin.elapsed().as_secs_f64();
        println!(
            "\n{made} programs in {seconds:.0} s, {:.1} a second, {failed} failed; {calls} calls under Shunpike, {on_lanes} ({} %) on lanes; {seen}",
            made as f64 / seconds,
            self.share(),
        );
    }
}

pub fn search(arguments: &Search) -> ExitCode {
    let clock =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    if arguments.errors && !errors_can_be_made() {
        return ExitCode::from(2);
    }
    let seed = arguments.seed.unwrap_or(clock);
    println!("seed {seed}");
    let progress = Progress {
        begin: Instant::now(),
        made: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        on_lanes: AtomicU64::new(0),
        kinds: Mutex::new(BTreeMap::new()),
    };
    let seen = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs)
            .map(|job| (job, &progress))
            .map(|(job, progress)| scope.spawn(move || search_alone(arguments, seed + job, job, progress)))
            .collect();
        let all = jobs.into_iter().map(|job| job.join().expect("a job ends"));
        all.reduce(Seen::and).expect("a job")
    });
    progress.report(&seen.to_string());
    if arguments.errors {
        println!("calls of the library's own that failed: {}", warden::failed());
    }
    let missing = arguments.reaches.as_deref().map_or(0, |table| pairs::lacking(&seen.pairs, table));
    if let Some(path) = &arguments.pairs {
        pairs::write(&seen.pairs, path);
    }
    let missing = missing + progress.is_share_too_small(arguments);
    let [made, failed] = [&progress.made, &progress.failed].map(|one| one.load(Ordering::Relaxed));
    println!("differential: {} passed, {} failed", made - failed, failed + missing);
    ExitCode::from(u8::from(failed + missing != 0))
}

fn errors_can_be_made() -> bool {
    let can = calls::can_be_answered();
    if let Err(error) = &can {
        eprintln!(
            "differential: no process can answer for another's system calls here (seccomp_unotify): {error}"
        );
    }
    can.is_ok()
}

/// One job's search, with actors and programs of its own.
fn search_alone(arguments: &Search, seed: u64, job: u64, progress: &Progress) -> Seen {
    let mut maker = Maker::new(arguments, seed);
    let mut lab = Lab::new(&arguments.built, &arguments.ways);
    let mut told = Instant::now();
    // Where only one end runs under Shunpike there are no lanes: not so much can differ.
    let has_lanes = |way: &Way| !matches!(way, Way::Client | Way::Server);
    let shares = |way: &Way| if has_lanes(way) { 4 } else { 1 };
    let turns: Vec<usize> =
        arguments.ways.iter().enumerate().flat_map(|(number, way)| vec![number; shares(way)]).collect();
    while !progress.is_over(arguments) {
        if job == 0 && told.elapsed() > TELL {
            told = Instant::now();
            progress.report(&lab.seen().to_string());
        }
        let way = turns[maker.made as usize % turns.len()];
        let mut program = if has_lanes(&arguments.ways[way]) { maker.next() } else { short(maker.next()) };
        let (reached, calls, on_lanes) = (lab.reached(), lab.calls, lab.on_lanes);
        if arguments.only.is_some_and(|only| only != maker.made) {
            progress.made.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if arguments.only.is_some() {
            print!("{}", lines(&program, &maker.failures));
        }
        if arguments.errors {
            lab.fail(&maker.failures);
        }
        let found = match arguments.windows {
            Some(step) => lab.judge_windows(&mut program, way, step, || progress.is_over(arguments)),
            None => lab.judge(&program, way),
        };
        for doubt in lab.doubts() {
            println!("undecided: program {} of seed {seed}, {doubt}", maker.made);
        }
        progress.made.fetch_add(1, Ordering::Relaxed);
        progress.calls.fetch_add(lab.calls - calls, Ordering::Relaxed);
        progress.on_lanes.fetch_add(lab.on_lanes - on_lanes, Ordering::Relaxed);
        if lab.reached() > reached {
            maker.keep(&program);
        }
        let Some(found) = found else { continue };
        progress.failed.fetch_add(1, Ordering::Relaxed);
        let failures = maker.failures.clone();
        failed(
            arguments,
            &mut lab,
            (program, failures),
            way,
            found,
            &format!("{job}-{}", maker.made),
            progress,
        );
    }
    lab.seen()
}

/// Cuts a failure to its shortest and tells of it, once for each kind and a few times more.
fn failed(
    arguments: &Search,
    lab: &mut Lab,
    (program, failures): (Vec<Op>, Vec<Failure>),
    way: usize,
    found: Difference,
    number: &str,
    progress: &Progress,
) {
    let name = lab.way(way);
    let times = {
        let mut kinds = progress.kinds.lock().expect("whoever holds it does not panic");
        let times = kinds.entry(format!("{name:?} {}", kind_of(&program, &found).1)).or_insert(0);
        *times += 1;
        *times
    };
    if times > arguments.cuts {
        println!("program {number}, {name:?}, once more: {found}");
        return;
    }
    println!("\nprogram {number}, {name:?}, after {:.0} s: {found}", progress.begin.elapsed().as_secs_f64());
    let (program, found) = shrink(lab, program, way, found);
    let failures = without_needless(lab, &program, way, failures, &found);
    // In one piece, as other jobs tell of theirs meanwhile.
    println!("shortest of program {number}: {found}\n{}", lines(&program, &failures));
    if let Some(directory) = &arguments.keep {
        keep(directory, &program, &failures, &format!("{name:?}: {found}"), number);
    }
}

fn lines(program: &[Op], failures: &[Failure]) -> String {
    let failures = failures.iter().map(|failure| format!("  fails: {failure}\n"));
    program.iter().enumerate().map(|(at, op)| format!("  {at:3} {op}\n")).chain(failures).collect()
}

/// The failures without which a program does not show its fault.
fn without_needless(
    lab: &mut Lab,
    program: &[Op],
    way: usize,
    mut failures: Vec<Failure>,
    found: &Difference,
) -> Vec<Failure> {
    for at in (0..failures.len()).rev() {
        let mut fewer = failures.clone();
        fewer.remove(at);
        lab.fail(&fewer);
        let found_again = (0..3).any(|_| {
            lab.judge(program, way).is_some_and(|it| kind_of(program, &it) == kind_of(program, found))
        });
        if found_again {
            failures = fewer;
        }
    }
    failures
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

fn keep(directory: &Path, program: &[Op], failures: &[Failure], fault: &str, number: &str) {
    let kept = Kept { fault: fault.to_owned(), program: program.to_vec(), failures: failures.to_vec() };
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

pub fn replay(
    directory: &Path,
    times: u32,
    ways: &[Way],
    windows: Option<u16>,
    files: &[PathBuf],
    kept: Option<&Path>,
) -> ExitCode {
    let mut lab = Lab::new(directory, ways);
    let mut failed = 0;
    for file in files {
        let mut program = Kept::read(file);
        if program.failures.is_empty() {
            lab.pass();
        } else if errors_can_be_made() {
            lab.fail(&program.failures);
        } else {
            return ExitCode::from(2);
        }
        let found = (0..ways.len() * times as usize).map(|turn| turn % ways.len()).find_map(|way| {
            let found = match windows {
                Some(step) => lab.judge_windows(&mut program.program, way, step, || false)?,
                None => lab.judge(&program.program, way)?,
            };
            Some((ways[way], found))
        });
        match found {
            Some((way, found)) => {
                failed += 1;
                println!("{}: {way:?}: {found} (when it was found: {})", file.display(), program.fault);
                if let Some(directory) = kept {
                    let Kept { program, failures, .. } = &program;
                    keep(directory, program, failures, &format!("{way:?}: {found}"), &failed.to_string());
                }
            }
            None => println!("{}: as on TCP", file.display()),
        }
    }
    println!("differential: {} passed, {failed} failed", files.len() - failed);
    ExitCode::from(u8::from(failed != 0))
}
