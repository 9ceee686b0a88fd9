//! Whether Shunpike is in a process, by which entry, and why it is not: as the kernel shows it, not as the process says.

use crate::kernel;
use crate::program::{self, Obstacle};
use crate::socket;
use std::path::Path;

/// Which of a process's calls Shunpike sees.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Those that it makes by libc's names: the library is loaded.
    Libc,
    /// Its system calls, which are patched.
    Syscall,
}

impl Entry {
    /// Of a process that has a session, and so an arena; `None` where we may not look.
    pub fn of(pid: u32) -> Option<Self> {
        match kernel::has_library(pid)? {
            true => Some(Self::Libc),
            false => kernel::has_arena(pid).filter(|has| *has).map(|_| Self::Syscall),
        }
    }

    /// As `run --entry` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libc => "libc",
            Self::Syscall => "syscall",
        }
    }
}

/// What was found.
pub struct Presence {
    /// `None`: cannot be seen from here.
    pub is_so: Option<bool>,
    pub text: String,
    /// What to do where it is not so.
    pub advice: &'static str,
}

impl Presence {
    /// In each of the processes, by PID and name. They may all accept the same connection.
    pub fn in_all(holders: &[(u32, String)]) -> Self {
        if let Some(go) = holders.iter().find(|(pid, _)| program::is_go(Path::new(&executed(*pid)))) {
            let why = "is a Go program, which makes its system calls itself, past any library";
            if kernel::has_libc(go.0) {
                return Self {
                    is_so: Some(false),
                    text: format!("{} {why}", named(go)),
                    advice: "nothing to mend: with a libc in it, it stays on TCP",
                };
            }
            return Self::of_entry(go, why);
        }
        let is_in = |wanted| holders.iter().find(move |(pid, _)| kernel::has_library(*pid) == wanted);
        match (is_in(Some(false)), is_in(Some(true))) {
            // Who keeps the socket has children that accept: a daemon's do not have its environment, a manager of services is not reached.
            (Some(without), Some(with)) if kernel::ancestors(without.0).contains(&with.0) => {
                Self::without_library(without)
            }
            (Some(without), Some(with)) if kernel::ancestors(with.0).contains(&without.0) => Self {
                is_so: Some(true),
                text: format!("libshunpike.so is loaded in {}", named(with)),
                advice: "",
            },
            (Some(without), Some(with)) => Self {
                is_so: None,
                text: format!(
                    "libshunpike.so is loaded in {}, and not in {}: which of them accepts a connection is not known",
                    named(with),
                    named(without)
                ),
                advice: "",
            },
            (Some(without), None) => Self::without_library(without),
            (None, Some(_)) => {
                Self { is_so: Some(true), text: "libshunpike.so is loaded in it".into(), advice: "" }
            }
            (None, None) => Self {
                is_so: None,
                text: "whether libshunpike.so is loaded in it cannot be seen: it is another user's, or has too many mappings".into(),
                advice: "",
            },
        }
    }

    /// Whether a process is known to be reached.
    pub fn is_in(pid: u32) -> bool {
        kernel::has_library(pid) == Some(true) || kernel::has_arena(pid) == Some(true)
    }

    fn without_library(holder: &(u32, String)) -> Self {
        let has_library = |pid: &u32| kernel::has_library(*pid) == Some(true);
        let ancestor = kernel::ancestors(holder.0).into_iter().find(has_library);
        if let Some(ancestor) = ancestor.map(|pid| (pid, kernel::name(pid))) {
            return Self {
                is_so: Some(false),
                text: format!(
                    "libshunpike.so is not loaded in {}, though it is in {}",
                    named(holder),
                    named(&ancestor)
                ),
                advice: "it was started with an environment of its own: have LD_PRELOAD and SHUNPIKE_SOCKET handed on \
                         ('Daemons that clear their environment' in docs/running.md)",
            };
        }
        match program::obstacle(Path::new(&executed(holder.0))) {
            Some(Obstacle::Static) => Self::of_entry(holder, &Obstacle::Static.to_string()),
            Some(obstacle) => Self {
                is_so: Some(false),
                text: format!("libshunpike.so is not loaded in {}, which {obstacle}", named(holder)),
                advice: "nothing to mend: it stays on TCP",
            },
            None if is_given_a_broker(holder.0) && program::is_musl(Path::new(&executed(holder.0))) => Self {
                is_so: Some(false),
                text: format!(
                    "libshunpike.so is not loaded in {}, which is of musl: its loader does not read /etc/ld.so.preload",
                    named(holder)
                ),
                advice: "give its container the device shunpike.dev/lane=musl, or start it with 'shunpike run'",
            },
            None => Self {
                is_so: Some(false),
                text: format!("libshunpike.so is not loaded in {}", named(holder)),
                advice: "start it with 'shunpike run'; setuid programs stay on TCP",
            },
        }
    }

    /// Of a program that no library can be loaded into, for which reason `why` says.
    fn of_entry(holder: &(u32, String), why: &str) -> Self {
        let (is_so, text, advice) = match kernel::has_entry(holder.0) {
            Some(true) => (Some(true), "; its system calls are patched", ""),
            Some(false) if is_given_a_broker(holder.0) && kernel::is_in_a_container(holder.0) => {
                (Some(false), "; a container's device does not reach static programs", IN_CONTAINER)
            }
            Some(false) => (Some(false), "", "start it with 'shunpike run --entry=syscall'"),
            None => (
                None,
                "; whether its system calls are patched shows at its first busy connection",
                "they are where it was started with 'shunpike run --entry=syscall'",
            ),
        };
        Self { is_so, text: format!("{} {why}{text}", named(holder)), advice }
    }
}

/// Of a static program in a container that has the device: no file and no variable changes what is executed.
const IN_CONTAINER: &str = "have the container execute 'shunpike run --entry=syscall -- PROGRAM' in its place (docs/containers.md, 'Static programs')";

/// Whether its environment names a broker, as `run` and a container's device have it.
fn is_given_a_broker(pid: u32) -> bool {
    kernel::has_variable(pid, socket::VARIABLE) == Some(true)
}

fn named((pid, name): &(u32, String)) -> String {
    format!("{name} (PID {pid})")
}

fn executed(pid: u32) -> String {
    format!("/proc/{pid}/exe")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::process::{Command, Stdio};
    use std::ptr::null_mut;

    /// A supervisor that holds its service's listener kept the service from being seen.
    #[test]
    fn a_child_without_the_library_counts_more_than_its_parent_with_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("libshunpike.so");
        std::fs::write(&path, [0; 4096]).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        // SAFETY: a new mapping at a place that the kernel chooses, which nobody reads.
        let mapped = unsafe { mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        let mapped = mapped.expect("mapped");
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let (with, without) = ((std::process::id(), "ours".into()), (other.id(), "cat".into()));
        // Until it has become cat, it has what this process has.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while Presence::is_in(other.id()) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let found = Presence::in_all(&[without, with]);
        let _ = other.kill();
        let _ = other.wait();
        // SAFETY: the mapping made above, of which nobody knows.
        unsafe { munmap(mapped, 4096) }.expect("unmapped");
        // The child of a daemon, which accepts in its place.
        assert_eq!(found.is_so, Some(false), "{}", found.text);
        assert!(
            found.text.contains("not loaded in cat (PID") && found.text.contains("though it is in"),
            "{}",
            found.text
        );
    }
}
