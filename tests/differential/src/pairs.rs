//! Pairs of a call and the state of its connection: which are reached, and which never are.
//!
//! A table says of each pair whether the programs of one seed reach it, other seeds' do, or none do (tests/differential/pairs.txt).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::generate;
use crate::op::Call;

/// A call, without its sizes, in a state of its connection: phase, mode of the receiving half, mode of the sending half.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair(pub String, pub [u16; 3]);

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [phase, rx, tx] = self.1;
        write!(f, "{} {phase} {rx} {tx}", self.0)
    }
}

/// A call without its sizes.
pub fn name_of(call: Call) -> String {
    match call {
        Call::Exchange { by, .. } => return format!("Exchange{by:?}"),
        Call::Corked { by, .. } => return format!("Corked{by:?}"),
        Call::Lend { lent, .. } => return format!("Lend{lent:?}"),
        _ => {}
    }
    let text = format!("{call:?}");
    let end = text.find(|c: char| c.is_ascii_digit() || c == ',' || c == '{').unwrap_or(text.len());
    text[..end].replace(['(', ')', ' '], "")
}

/// The pairs and how often each was reached, the rarest last.
pub fn write(pairs: &BTreeMap<Pair, u64>, path: &Path) {
    let mut all: Vec<_> = pairs.iter().collect();
    all.sort_by_key(|&(pair, &times)| (std::cmp::Reverse(times), pair));
    let text: String = all.into_iter().map(|(pair, times)| format!("{times} {pair}\n")).collect();
    std::fs::write(path, text).expect("the pairs can be written");
}

/// What [`write()`] has written.
fn read(path: &Path) -> BTreeMap<Pair, u64> {
    let text = std::fs::read_to_string(path).expect("pairs");
    let pair = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [times, name, state @ ..] = &words[..] else { return None };
        Some((Pair((*name).to_owned(), state_of(state)?), times.parse().ok()?))
    };
    text.lines().map(|line| pair(line).expect("a pair")).collect()
}

fn state_of(words: &[&str]) -> Option<[u16; 3]> {
    let all: Vec<u16> = words.iter().map_while(|word| word.parse().ok()).collect();
    all.try_into().ok()
}

/// Each run of the table's seed reaches it,
const EACH: char = '#';
/// ... some run of any seed does,
const SOME: char = '+';
/// ... and none did.
const NEVER: char = '.';

/// The table: for each call its pairs' marks, one for each state.
struct Table {
    /// Pairs that a run of its seed may leave out at most.
    most: usize,
    states: Vec<[u16; 3]>,
    rows: BTreeMap<String, Vec<char>>,
}

impl Table {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a table of pairs");
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut head = lines.next().unwrap_or_default().split(' ');
        let most = head.next().and_then(|word| word.parse().ok()).expect("how many may be left out");
        let state = |word: &str| state_of(&word.split('.').collect::<Vec<_>>()).expect("a state");
        let row = |line: &str| {
            let (name, marks) = line.split_once(' ').expect("a call and its marks");
            (name.to_owned(), marks.chars().collect())
        };
        Self { most, states: head.map(state).collect(), rows: lines.map(row).collect() }
    }

    fn pairs(&self, which: impl Fn(char) -> bool) -> BTreeSet<Pair> {
        let all = self.rows.iter().flat_map(|(name, marks)| {
            let cells = self.states.iter().zip(marks).filter(|&(_, &mark)| which(mark));
            cells.map(|(&state, _)| Pair(name.clone(), state))
        });
        all.collect()
    }
}

/// What a run lacks that a table wants of it: pairs that it must reach, and too many that it does not.
pub fn lacking(reached: &BTreeMap<Pair, u64>, path: &Path) -> u64 {
    let table = Table::read(path);
    let is_missed = |pair: &&Pair| !reached.contains_key(*pair);
    let (must, all) = (table.pairs(|mark| mark == EACH), table.pairs(|_| true));
    let missing: Vec<_> = must.iter().filter(is_missed).collect();
    for pair in &missing {
        println!("not reached: {pair} (call, phase, mode of the receiving and of the sending half)");
    }
    let never = table.pairs(|mark| mark == NEVER);
    let mut lacks = missing.len();
    let first = reached.keys().filter(|pair| never.contains(*pair)).count();
    for pair in reached.keys().filter(|pair| !table.rows.contains_key(&pair.0)) {
        println!("a call that the table of pairs does not have: {}", pair.0);
        lacks += 1;
    }
    let left_out = all.iter().filter(is_missed).count();
    println!(
        "{left_out} of {} pairs not reached; {} never were, but {first} of these are now",
        all.len(),
        never.len()
    );
    if left_out > table.most {
        println!("these are more than {}", table.most);
        lacks += 1;
    }
    lacks as u64
}

/// The calls that the generator makes, of those that tell of a connection's state: not one that opens it, hands it to a process that is
/// there, or goes on in a new program.
fn vocabulary() -> BTreeSet<String> {
    const PROGRAMS: u32 = 1000;
    let has_state =
        |call: &Call| !call.is_of_driver() && !matches!(call, Call::Open { .. } | Call::Swap | Call::Exec);
    let mut runner = TestRunner::deterministic();
    let programs = generate::program(40, false).boxed();
    let program = |_| programs.new_tree(&mut runner).expect("it always can").current();
    let calls = (0..PROGRAMS).flat_map(program).map(|op| op.call);
    calls.filter(has_state).map(name_of).collect()
}

/// Prints a table: of the runs of its seed, and of others. What each of the first reached sixteen times they must reach.
pub fn print_table(seed: u64, each: &[PathBuf], others: &[PathBuf]) {
    const OFTEN: u64 = 16;
    let each: Vec<_> = each.iter().map(|path| read(path)).collect();
    let others: Vec<_> = others.iter().map(|path| read(path)).collect();
    let all = || each.iter().chain(&others);
    let pairs: BTreeSet<&Pair> = all().flat_map(BTreeMap::keys).collect();
    let states: BTreeSet<[u16; 3]> = pairs.iter().map(|pair| pair.1).collect();
    let mut names = vocabulary();
    names.extend(pairs.iter().map(|pair| pair.0.clone()));
    let cells = names.len() * states.len();
    let fewest = each.iter().map(BTreeMap::len).min().expect("a run of the seed");
    println!("# seed {seed}");
    println!(
        "# Each call in each state of its connection (phase, modes of its receiving and of its sending half): '{EACH}' its programs must reach,"
    );
    println!(
        "# '{SOME}' some seed's reached, '{NEVER}' none of {} runs'. First how many of them a run may leave out.",
        all().count()
    );
    let head: String = states.iter().map(|[phase, rx, tx]| format!(" {phase}.{rx}.{tx}")).collect();
    // On another machine, or beside load, other moments of a switch are reached.
    println!("{}{head}", cells - fewest * 4 / 5);
    for name in names {
        let mark = |&state: &[u16; 3]| {
            let pair = Pair(name.clone(), state);
            let is_sure = each.iter().all(|run| run.get(&pair).is_some_and(|&times| times >= OFTEN));
            if is_sure {
                EACH
            } else if pairs.contains(&pair) {
                SOME
            } else {
                NEVER
            }
        };
        println!("{name} {}", states.iter().map(mark).collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pairs.txt");

    #[test]
    fn each_call_that_is_generated_has_a_row() {
        let table = Table::read(Path::new(TABLE));
        let all = vocabulary();
        let missing: Vec<_> = all.iter().filter(|name| !table.rows.contains_key(*name)).collect();
        assert!(all.len() > 150, "{}", all.len());
        assert!(missing.is_empty(), "no row: {missing:?}");
        assert!(table.rows.values().all(|marks| marks.len() == table.states.len()));
    }

    #[test]
    fn a_run_that_reaches_less_lacks_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("table");
        std::fs::write(&path, "# seed 1\n2 0.0.0 3.2.2\nEcho #+\nLookPoll .#\n").expect("a table");
        let reached = |pairs: &[(&str, [u16; 3])]| {
            pairs.iter().map(|&(name, state)| (Pair(name.to_owned(), state), 1)).collect::<BTreeMap<_, _>>()
        };
        let both = [("Echo", [0, 0, 0]), ("LookPoll", [3, 2, 2])];
        assert_eq!(lacking(&reached(&both), &path), 0);
        // One that it must reach, and three left out.
        assert_eq!(lacking(&reached(&both[..1]), &path), 2);
        let unknown = [both[0], both[1], ("Look", [0, 0, 0])];
        assert_eq!(lacking(&reached(&unknown), &path), 1);
    }
}
