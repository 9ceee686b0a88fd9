//! How many CPUs there are.

use std::fs;

/// Those online. Not available_parallelism(), nor sysconf(), which some libcs answer by what this process may use: its clients may use others.
pub fn online() -> u32 {
    let list = fs::read_to_string("/sys/devices/system/cpu/online");
    let of_stat = || fs::read_to_string("/proc/stat").ok().map(|text| in_stat(&text));
    list.ok().and_then(|text| in_list(&text)).or_else(of_stat).unwrap_or(1).max(1)
}

/// `0-3,8`, as the kernel writes sets of CPUs.
fn in_list(text: &str) -> Option<u32> {
    text.trim().split(',').try_fold(0, |sum: u32, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// A line for each, which begins `cpu0`.
fn in_stat(text: &str) -> u32 {
    let is_one = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    text.lines().filter(is_one).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_counted() {
        assert_eq!(["0\n", "0-1\n", "0-3,8,10-11\n"].map(in_list), [Some(1), Some(2), Some(7)]);
        assert_eq!(["", "x", "3-1", "0-4294967295"].map(in_list), [None; 4]);
        assert_eq!(in_stat("cpu  1 2\ncpu0 1\ncpu1 1\nintr 3\n"), 2);
    }

    #[test]
    fn what_this_process_may_use_does_not_matter() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let (all, before) = (online(), sched_getaffinity(None).expect("an affinity"));
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).expect("a CPU"));
        sched_setaffinity(None, &one).expect("ours to set");
        assert_eq!(online(), all);
        sched_setaffinity(None, &before).expect("as before");
    }
}
