//! How long calls of a thread take, and how much of that is the machine's doing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::waits::cpu_ns;

/// How long something took.
#[derive(Copy, Clone, Debug, Default)]
pub struct Times {
    /// Without `held_up_ns`.
    pub ns: u64,
    pub cpu_ns: u64,
    /// How long the thread could have run and did not, as others had the CPUs.
    pub held_up_ns: u64,
}

impl Times {
    /// The most of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            ns: self.ns.max(other.ns),
            cpu_ns: self.cpu_ns.max(other.cpu_ns),
            held_up_ns: self.held_up_ns.max(other.held_up_ns),
        }
    }
}

pub struct Moment {
    at: Instant,
    cpu_ns: u64,
    held_up_ns: u64,
}

/// The times of the thread that made it.
pub struct Timer {
    /// proc(5), /proc/PID/schedstat: time on a CPU, time that it waited for one, and how often.
    schedule: Option<File>,
}

impl Timer {
    pub fn new() -> Self {
        Self { schedule: File::open("/proc/thread-self/schedstat").ok() }
    }

    pub fn now(&self) -> Moment {
        Moment { held_up_ns: self.held_up_ns(), cpu_ns: cpu_ns(), at: Instant::now() }
    }

    pub fn since(&self, begin: &Moment) -> Times {
        let all = begin.at.elapsed().as_nanos() as u64;
        let held_up_ns = self.held_up_ns().saturating_sub(begin.held_up_ns).min(all);
        Times { ns: all - held_up_ns, cpu_ns: cpu_ns() - begin.cpu_ns, held_up_ns }
    }

    fn held_up_ns(&self) -> u64 {
        let mut text = [0; 96];
        let n = self.schedule.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..n]).unwrap_or("");
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}
