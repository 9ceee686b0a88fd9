//! All that a program may ask of a socket, from the library's own table (docs/sockets.md, which a test of core's compares with it).

use std::sync::LazyLock;

use crate::op::LEVELS;

const PAGE: &str = include_str!("../../../docs/sockets.md");
const NUMBERS: &str = include_str!("../../../crates/core/src/surface/linux.txt");

/// The kinds of names in the list of numbers whose options have a level.
const KINDS: [&str; 4] = ["socket", "ip", "ipv6", "tcp"];
/// What the page says of a row for which the library has nothing to do.
const NOTHING: &str = "nothing to do";

/// Options that are not set here, though a lane does not feel them.
const NOT_SET: [&str; 3] = [
    // A filter that is there stays, for all that comes.
    "SO_LOCK_FILTER",
    // The kernel looks for a module, which takes its time.
    "TCP_CONGESTION",
    // A lookup of the error takes it away: `LookBy::SoError` compares it.
    "SO_ERROR",
];

/// Options whose value is another one in each run: which CPU, which port, which time, how much the peer has room for.
const VARY: [&str; 7] = [
    "SO_INCOMING_CPU",
    "SO_PEERNAME",
    "TCP_TIMESTAMP",
    "TCP_MAXSEG",
    "IP_PKTOPTIONS",
    "IPV6_2292PKTOPTIONS",
    // Of a stream it is the local port.
    "IP_PROTOCOL",
];

/// Names, what becomes of a lane, and whether it is a table of options.
fn rows() -> impl Iterator<Item = (Vec<&'static str>, &'static str)> {
    // Behind the page's own words.
    PAGE.lines().skip_while(|line| !line.starts_with("## ")).filter_map(|line| {
        let mut columns = line.strip_prefix("| ")?.split(" | ");
        let (names, does) = (columns.next()?, columns.next()?);
        (names != "name").then(|| (names.split(", ").collect(), does))
    })
}

/// The place of an option's level among [`LEVELS`], and its number.
fn number_of(name: &str) -> Option<(u8, u8)> {
    NUMBERS.lines().find_map(|line| {
        let mut words = line.split(' ');
        let level = KINDS.iter().position(|&kind| Some(kind) == words.clone().next())?;
        (words.nth(1)? == name)
            .then(|| words.next()?.parse().ok())
            .flatten()
            .map(|number| (level as u8, number))
    })
}

/// The options that a lane does not feel.
pub static UNFELT: LazyLock<Vec<(u8, u8)>> = LazyLock::new(|| {
    let names = rows().filter(|&(_, does)| does == NOTHING).flat_map(|(names, _)| names);
    names.filter(|name| !NOT_SET.contains(name)).filter_map(number_of).collect()
});

/// Whether an option's value differs from run to run.
pub fn varies(level: i32, name: i32) -> bool {
    VARY.iter()
        .filter_map(|&name| number_of(name))
        .any(|(of, number)| LEVELS[usize::from(of)] == level && i32::from(number) == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::generate;
    use crate::op::names;

    /// What the generator does without, and why; where there is a test by hand, which.
    const LEFT_OUT: &[(&[&str], &str)] = &[
        (
            &["IP_IPSEC_POLICY", "IP_XFRM_POLICY", "IPV6_IPSEC_POLICY", "IPV6_XFRM_POLICY"],
            "A policy needs keys that both hosts have.",
        ),
        (
            &[
                "TCP_MD5SIG",
                "TCP_MD5SIG_EXT",
                "TCP_AO_ADD_KEY",
                "TCP_AO_DEL_KEY",
                "TCP_AO_INFO",
                "TCP_AO_GET_KEYS",
            ],
            "Keys that both ends have before the first segment.",
        ),
        (&["TCP_REPAIR"], "It takes a stream apart: options.c, test_reasons.py."),
        (&["TCP_ULP"], "Kernel TLS: test_reasons.py."),
        (&["SIOCKCMATTACH"], "A multiplexor of the kernel's takes the socket, and TCP's answers are its."),
        (&["io_uring_register"], "Rings here have nothing registered: ringed.c."),
        (&["io_submit", "io_getevents", "io_pgetevents", "io_cancel"], "Linux AIO: seen.c."),
        (&["execveat"], "exec by another name: executes.c."),
        (&["unshare"], "Threads with tables of their own: options.c, test_reasons.py."),
        (
            &["kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"],
            "A signal is the same whoever sends it.",
        ),
        (&["sigaltstack"], "A handler's stack: badinput.c."),
        (&["prctl"], "Filters come by seccomp (`--errors`)."),
        (
            &[
                "setuid",
                "setgid",
                "setreuid",
                "setregid",
                "setresuid",
                "setresgid",
                "setfsuid",
                "setfsgid",
                "setgroups",
                "capset",
            ],
            "The tester's processes are one user's: test_confined.py.",
        ),
        (
            &[
                "mmap",
                "munmap",
                "mremap",
                "remap_file_pages",
                "madvise",
                "process_madvise",
                "mprotect",
                "pkey_mprotect",
            ],
            "Memory that is sent without a copy: lent.c.",
        ),
        (&["pidfd_getfd"], "Nobody in the process can see it."),
        (
            &[
                "mount",
                "fsconfig",
                "fsopen",
                "fsmount",
                "fspick",
                "move_mount",
                "open_tree",
                "open_tree_attr",
                "mount_setattr",
                "umount2",
            ],
            "Nobody in the process can see it.",
        ),
        (
            &[
                "futex_waitv",
                "futex_wake",
                "futex_wait",
                "futex_requeue",
                "set_robust_list",
                "get_robust_list",
            ],
            "Memory that threads wait for, by calls of libc's own.",
        ),
    ];

    fn generated() -> BTreeSet<&'static str> {
        let mut runner = TestRunner::deterministic();
        let mut all: BTreeSet<&str> = names::OF_EACH.iter().copied().collect();
        let programs = generate::program(40, true).boxed();
        for _ in 0..1500 {
            let program = programs.new_tree(&mut runner).expect("it always can").current();
            all.extend(program.into_iter().flat_map(|op| names::of(op.call)));
        }
        all
    }

    #[test]
    fn each_row_that_a_lane_feels_is_generated_or_left_out_for_a_reason() {
        let felt: BTreeSet<&str> =
            rows().filter(|&(_, does)| does != NOTHING).flat_map(|(names, _)| names).collect();
        assert!(felt.len() > 100, "the page has its tables: {}", felt.len());
        let (generated, left_out) = (
            generated(),
            LEFT_OUT.iter().flat_map(|(names, _)| names.iter().copied()).collect::<BTreeSet<_>>(),
        );
        let missing: Vec<_> =
            felt.iter().filter(|name| !generated.contains(*name) && !left_out.contains(*name)).collect();
        assert!(missing.is_empty(), "neither generated nor left out for a reason: {missing:?}");
        let needless: Vec<_> =
            left_out.iter().filter(|name| generated.contains(*name) || !felt.contains(*name)).collect();
        assert!(needless.is_empty(), "left out, and generated or unknown: {needless:?}");
    }

    #[test]
    fn each_name_that_is_generated_is_one_of_the_table() {
        let known: BTreeSet<&str> = rows().flat_map(|(names, _)| names).collect();
        let unknown: Vec<_> = generated().into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn options_that_a_lane_does_not_feel_have_their_numbers() {
        assert!(UNFELT.len() > 100, "{}", UNFELT.len());
        assert!(UNFELT.contains(&(0, libc::SO_REUSEPORT as u8)));
        assert!(!UNFELT.contains(&(3, libc::TCP_REPAIR as u8)));
        assert!(varies(libc::IPPROTO_TCP, libc::TCP_MAXSEG) && !varies(libc::SOL_SOCKET, libc::SO_TYPE));
    }
}
