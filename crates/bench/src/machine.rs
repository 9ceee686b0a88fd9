//! Where it was measured.

use serde::Serialize;
use std::fs;

/// The machine, and how busy it was.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// CPUs that we may use.
    pub cpus: usize,
    /// Whether a hypervisor is beneath.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
    /// Load averages of the last minute, at begin and end: above the CPUs' number others wanted them too.
    pub load_begin: f64,
    /// At the end.
    pub load_end: f64,
}

impl Machine {
    /// As it is now.
    pub fn look() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let flags = field("flags").unwrap_or_default();
        Self {
            cpu: field("model name").or_else(|| field("CPU implementer")).unwrap_or_else(|| "unknown".into()),
            cpus: cpus().len(),
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load_begin: load(),
            load_end: load(),
        }
    }

    /// Notes how busy it is at the end.
    pub fn end(&mut self) {
        self.load_end = load();
    }

    /// Whether others wanted it, too, when it was first looked at.
    pub fn is_busy(&self) -> bool {
        self.load_begin > self.cpus as f64 * 0.5
    }

    /// One line.
    pub fn show(&self) -> String {
        let kind = if self.virtual_machine { "virtual machine" } else { "machine" };
        format!(
            "{kind} with {} CPUs ({}), Linux {}; load average {:.2} at begin, {:.2} at end",
            self.cpus, self.cpu, self.kernel, self.load_begin, self.load_end
        )
    }
}

/// The CPUs that we may use.
pub fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok();
    let allowed = |cpu: &usize| set.as_ref().is_some_and(|set| set.is_set(*cpu));
    (0..rustix::thread::CpuSet::MAX_CPU).filter(allowed).collect()
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}
