//! What docs/shared-memory.md says of offsets is what the code has: one row for each word, and no others.

use crate::{arena, lane, pages, tap};

/// Words, in the document's order, and where they are.
type Layout = Vec<(&'static str, Vec<usize>)>;

const TEXT: &str = include_str!("../../../docs/shared-memory.md");

/// The rows of the first table behind the first line that has `mark`: two of their cells, by the table's head.
fn table(mark: &str, of: &str) -> Vec<(String, Vec<usize>)> {
    let (_, behind) = TEXT.split_once(mark).unwrap_or_else(|| panic!("no {mark}"));
    let mut lines =
        behind.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let head = cells(lines.next().expect("a table's head"));
    let column = |name: &str| {
        head.iter().position(|cell| cell == name).unwrap_or_else(|| panic!("no {name} at {mark}"))
    };
    let (name, offset) = (column(of), column("offset"));
    lines.skip(1).map(cells).map(|row| (row[name].clone(), numbers(&row[offset]))).collect()
}

/// All numbers that are written in base 16.
fn numbers(text: &str) -> Vec<usize> {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_hexdigit).collect::<String>();
    text.split("0x").skip(1).map(|part| usize::from_str_radix(&digits(part), 16).expect("a number")).collect()
}

fn is_documented(mark: &str, of: &str, layout: Layout) {
    let layout: Vec<_> = layout.into_iter().map(|(word, offsets)| (word.to_owned(), offsets)).collect();
    assert_eq!(table(mark, of), layout, "docs/shared-memory.md, {mark}");
}

#[test]
fn lane() {
    is_documented("src/lane.rs)", "word", lane::layout());
}

#[test]
fn link_page() {
    is_documented("src/pages.rs)", "word", pages::link_layout());
    let stride = format!(
        "at `side * {:#x} + cq * {:#x}`",
        size_of::<[pages::CqNews; 8]>(),
        size_of::<pages::CqNews>()
    );
    assert!(TEXT.contains(&stride), "{stride}");
}

#[test]
fn brokers_pages() {
    is_documented("From the broker,", "word", pages::brokers_layout());
}

#[test]
fn tap() {
    is_documented("src/tap.rs)", "word", tap::layout());
}

#[test]
fn arena() {
    let blocks = format!("{:#x} + {} n", arena::HEADER, size_of::<arena::Block>());
    assert!(TEXT.contains(&blocks), "{blocks}");
    let notices = format!("{:#05x} of the block", core::mem::offset_of!(arena::Block, notices));
    assert!(TEXT.contains(&notices), "{notices}");
}

/// Wire's version, and what is shared in that one.
const SHARED: (u32, u64) = (16, 0x2f92_0b0d_be77_6591);

/// Of two releases with one version each reads the other's words by its own layout.
#[test]
fn another_layout_has_another_version() {
    let texts = [
        include_str!("arena.rs"),
        include_str!("arena/half.rs"),
        include_str!("lane/words.rs"),
        include_str!("lane/loans.rs"),
        include_str!("lane/short.rs"),
        include_str!("lock.rs"),
        include_str!("notices.rs"),
        include_str!("pages.rs"),
        include_str!("tap.rs"),
    ];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for field in texts.into_iter().flat_map(fields) {
        hash = field.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }
    let now = (shunpike_wire::session::VERSION, hash);
    assert_eq!(now, SHARED, "a new layout: give wire's VERSION a new number, and write both here; {hash:#x}");
}

/// Names and types, in order, of what has C's layout.
fn fields(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[repr(C").skip(1).flat_map(|behind| {
        let lines = behind.lines().skip_while(|line| !line.ends_with('{')).skip(1);
        let lines = lines.take_while(|line| *line != "}").map(str::trim);
        lines.filter(|line| !line.starts_with("//") && !line.starts_with('#'))
    })
}
