//! PIDs as the caller's pid namespace has them. The broker has those of its own, which may be another one: a container's, or the host's.
//!
//! The broker hands over the processes themselves (pidfds), and the kernel says what they are called here. What has no name here is 0.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use serde_json::Value;
use shunpike_broker::{PROCESSES, QueryError, process_that_serves, processes};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands for a PID in the broker's answers.
const KEYS: [&str; 3] = ["pid", "client_pid", "server_pid"];

/// The numbers of the processes of one broker.
pub struct Pids {
    socket: PathBuf,
    is_same: OnceCell<bool>,
    /// By the broker's numbers.
    known: RefCell<HashMap<u32, u32>>,
}

impl Pids {
    /// Of the broker at `socket`.
    pub fn of(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), is_same: OnceCell::new(), known: RefCell::default() }
    }

    /// Whether the broker calls processes as we do.
    pub fn is_same(&self) -> bool {
        *self.is_same.get_or_init(|| shares_our_pids(&self.socket))
    }

    /// What is called `theirs` by the broker.
    pub fn own(&self, theirs: u32) -> u32 {
        if self.is_same() {
            return theirs;
        }
        self.learn(vec![theirs]);
        self.known(theirs)
    }

    /// What is called `own` here, of those that are in an answer of the broker's.
    pub fn theirs(&self, own: u32, answer: &Value) -> Option<u32> {
        let mut theirs = Vec::new();
        collect(answer, &mut theirs);
        self.learn(theirs.clone());
        theirs.into_iter().find(|theirs| own != 0 && self.known(*theirs) == own)
    }

    /// Puts our numbers into an answer.
    pub fn translate(&self, answer: &mut Value) {
        let mut theirs = Vec::new();
        collect(answer, &mut theirs);
        self.learn(theirs);
        self.replace(answer);
    }

    fn known(&self, theirs: u32) -> u32 {
        self.known.borrow().get(&theirs).copied().unwrap_or(0)
    }

    /// Each time anew: a number may be another process's by now.
    fn learn(&self, mut theirs: Vec<u32>) {
        let mut known = self.known.borrow_mut();
        theirs.retain(|pid| *pid != 0);
        known.retain(|pid, _| !theirs.contains(pid));
        theirs.sort_unstable();
        theirs.dedup();
        for some in theirs.chunks(PROCESSES) {
            self.learn_some(some, &mut known);
        }
    }

    fn learn_some(&self, theirs: &[u32], known: &mut HashMap<u32, u32>) {
        match processes(&self.socket, theirs) {
            // Our limit of open files: half as many at a time.
            Err(QueryError::NoFiles) if theirs.len() > 1 => {
                let (first, second) = theirs.split_at(theirs.len() / 2);
                self.learn_some(first, known);
                self.learn_some(second, known);
            }
            // An older broker tells of none, nor does a kernel before Linux 6.5.
            Err(_) => {}
            Ok(found) => known
                .extend(found.iter().filter_map(|(pid, process)| Some((*pid, *names(process)?.first()?)))),
        }
    }

    fn replace(&self, value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| self.replace(value)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    match pid_of(key, value) {
                        Some(pid) => *value = self.known(pid).into(),
                        None => self.replace(value),
                    }
                }
            }
            _ => {}
        }
    }
}

fn pid_of(key: &str, value: &Value) -> Option<u32> {
    KEYS.contains(&key).then(|| u32::try_from(value.as_u64()?).ok()).flatten()
}

fn collect(value: &Value, pids: &mut Vec<u32>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, pids)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match pid_of(key, value) {
            Some(pid) => pids.push(pid),
            None => collect(value, pids),
        }),
        _ => {}
    }
}

/// Whether the broker is in the pid namespace of our /proc, and in none below.
fn shares_our_pids(socket: &Path) -> bool {
    let names = match process_that_serves(socket) {
        Ok((Some(process), _)) => names(&process),
        // Before Linux 6.5. A /proc that hides it is nearly always one of our own namespace.
        Ok((None, pid)) => {
            return pid != 0 && names_of(&format!("{pid}/status")).is_none_or(|names| names.len() == 1);
        }
        // It is gone: what comes next says so.
        Err(_) => return true,
    };
    names.is_some_and(|names| names.len() == 1)
}

/// What a process is called: here, then in each pid namespace below. `None`: it has ended, or has no name here.
fn names(process: &OwnedFd) -> Option<Vec<u32>> {
    names_of(&format!("self/fdinfo/{}", process.as_fd().as_raw_fd()))
}

fn names_of(file: &str) -> Option<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{file}")).ok()?;
    let names = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    // -1 of one that has ended.
    let names: Option<Vec<u32>> = names.split_whitespace().map(|name| name.parse().ok()).collect();
    names.filter(|names| names.first().is_some_and(|first| *first != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_pid_of_an_answer_is_put_into_our_namespace() {
        let pids = Pids::of(Path::new("/nonexistent"));
        pids.known.borrow_mut().extend([(4711, 7), (4712, 8)]);
        let mut answer = json!({
            "connections": [{ "pid": 4711, "fd": 3 }, { "pid": 4713, "fd": 4711 }],
            "link_groups": [{ "client_pid": 4711, "server_pid": 4712 }],
            "explanations": [{ "connection": { "pid": 4712 } }],
        });
        let mut all = Vec::new();
        collect(&answer, &mut all);
        all.sort_unstable();
        assert_eq!(all, [4711, 4711, 4712, 4712, 4713]);
        pids.replace(&mut answer);
        let wanted = json!({
            "connections": [{ "pid": 7, "fd": 3 }, { "pid": 0, "fd": 4711 }],
            "link_groups": [{ "client_pid": 7, "server_pid": 8 }],
            "explanations": [{ "connection": { "pid": 8 } }],
        });
        assert_eq!(answer, wanted);
    }

    #[test]
    fn we_are_called_by_our_number() {
        let own = rustix::process::getpid();
        let process =
            rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).expect("a pidfd");
        assert_eq!(names(&process).expect("a name").first(), Some(&std::process::id()));
        assert_eq!(names_of("self/fdinfo/0"), None);
    }
}
