//! The table is whole, and the page is the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::calls::{CALLS, FCNTL, FLAGS, IOCTL};
use super::options::{IP, IPV6, SOCKET, TCP};
use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sockets.md");
const NAMES: &str = include_str!("linux.txt");

/// A table as the page shows it: its kind in the list of names, its title, (name, number if it has one, row's index) and rows.
struct Part {
    kind: &'static str,
    title: &'static str,
    names: Vec<(&'static str, Option<i64>)>,
    lines: Vec<String>,
}

fn line<Name>(row: &Row<Name>, names: &[&str]) -> String {
    let (does, how) = match row.does {
        Does::Nothing => ("nothing to do", String::new()),
        Does::Same(at) => ("same effect", at.into()),
        Does::Tcp(Unset::UpTo(value)) => ("back to TCP", format!("where it is more than {value}")),
        Does::Tcp(Unset::NoFilter) => ("back to TCP", "where there is a filter".into()),
        Does::Back(reason, at) => ("back to TCP", format!("{}: {at}", reason.key())),
        Does::Differs => ("differs", "COMPLIANCE.md".into()),
        Does::Unseen => ("not possible", String::new()),
    };
    format!("| {} | {does} | {how} | {} |\n", names.join(", "), row.note)
}

fn numbered(kind: &'static str, title: &'static str, rows: &[Row<Numbered>]) -> Part {
    let plain = |row: &Row<Numbered>| row.names.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let names = rows.iter().flat_map(|row| row.names.iter().map(|(name, number)| (*name, Some(*number))));
    let lines = rows.iter().map(|row| line(row, &plain(row))).collect();
    Part { kind, title, names: names.collect(), lines }
}

fn named(kind: &'static str, title: &'static str, rows: &[Row<&'static str>]) -> Part {
    let names = rows.iter().flat_map(|row| row.names.iter().map(|name| (*name, None))).collect();
    let lines = rows.iter().map(|row| line(row, row.names)).collect();
    Part { kind, title, names, lines }
}

fn parts() -> [Part; 8] {
    [
        numbered("socket", "SOL_SOCKET", SOCKET),
        numbered("ip", "IPPROTO_IP", IP),
        numbered("ipv6", "IPPROTO_IPV6", IPV6),
        numbered("tcp", "IPPROTO_TCP", TCP),
        named("fcntl", "fcntl", FCNTL),
        named("ioctl", "ioctl", IOCTL),
        numbered("flag", "Flags of send and recv", FLAGS),
        named("syscall", "System calls", CALLS),
    ]
}

#[test]
fn every_name_of_the_headers_has_a_row_and_every_row_its_number() {
    let mut missing = Vec::new();
    for part in parts() {
        let mut rows: BTreeMap<&str, Option<i64>> = BTreeMap::new();
        for (name, number) in part.names {
            assert!(rows.insert(name, number).is_none(), "{name} has two rows");
        }
        let mut listed = BTreeSet::new();
        for line in NAMES.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            if words.next() != Some(part.kind) {
                continue;
            }
            let name = words.next().expect("a name");
            listed.insert(name);
            match rows.get(name) {
                None => missing.push(name),
                Some(None) => {}
                Some(number) => {
                    assert_eq!(words.next().and_then(|word| word.parse().ok()), *number, "{name}");
                }
            }
        }
        assert!(!listed.is_empty(), "{}: no names", part.kind);
        let unknown: Vec<_> = rows.keys().filter(|name| !listed.contains(*name)).collect();
        assert!(unknown.is_empty(), "{}: the headers do not know {unknown:?}", part.kind);
    }
    assert!(missing.is_empty(), "without a row: {missing:?}");
}

#[test]
fn an_option_is_found_by_its_number() {
    assert_eq!(of_option(libc::SOL_SOCKET, libc::SO_PEEK_OFF), Does::Tcp(Unset::UpTo(-1)));
    assert_eq!(
        of_option(libc::IPPROTO_TCP, libc::TCP_ULP),
        Does::Back(Reason::Ktls, "lifecycle.rs set_option")
    );
    assert_eq!(of_option(libc::SOL_SOCKET, -1), Does::Nothing);
    assert_eq!(of_option(libc::IPPROTO_IP, 1 << 20), Does::Nothing);
    assert_eq!(of_option(libc::SOL_TLS, 1), Does::Nothing);
    assert!(barring().any(|(level, name, _)| (level, name) == (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)));
    assert!(barring().all(|(level, name, unset)| of_option(level, name) == Does::Tcp(unset)));
}

fn page() -> String {
    let mut page = String::from(
        "# What a program may ask of a socket\n\n\
         Every option of the four levels of a TCP socket, fcntl command, ioctl, flag and system call that Linux has names for, and what\n\
         becomes of a lane. The names are those of the headers of Linux 7.2, which has all of 6.18's. This page is made from\n\
         [surface.rs](../crates/core/src/surface.rs), by which the library decides; files are named as they stand below `crates/core/src`\n\
         and `crates/preload/src`.\n\n\
         | | |\n|---|---|\n\
         | nothing to do | it does not reach the stream's bytes nor how a program waits for them, or the kernel does it all the same |\n\
         | same effect | a lane does as TCP, by the code that is named |\n\
         | back to TCP | the connection is on TCP for good: set before, it gets no lane; set on a lane, that ends at the next byte |\n\
         | differs | a lane does not feel it: [COMPLIANCE.md](../COMPLIANCE.md) |\n\
         | not possible | nobody in the process can see it |\n\n\
         An option that takes a connection back counts also where it was set on the listening socket, on a duplicate, or by whoever\n\
         made the socket: the kernel is asked at the nomination, in a process where such an option was seen, or that was given\n\
         a socket from elsewhere.\n",
    );
    for part in parts() {
        page += &format!(
            "\n## {}\n\n| name | what becomes of a lane | how | what it is |\n|---|---|---|---|\n",
            part.title
        );
        page.extend(part.lines);
    }
    page
}

#[test]
fn the_page_is_the_table() {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, page()).expect("docs/sockets.md");
    }
    let written = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page(), "refresh it: UPDATE_DOCS=1 cargo test -p shunpike-core surface");
}
