//! Files that are cut off, hostile or odd: a clear refusal, and never a site that is none.

use proptest::prelude::*;
use shunpike_inject::image::{self, Kind};
use shunpike_inject::patch;
use shunpike_inject::reason::Reason;
use shunpike_inject::sites::{self, Site};

const BASE: u64 = 0x40_0000;
const HEADERS: usize = 0x1000;
const SYSCALL: &[u8] = &[0x0f, 0x05];
const GETPPID: &[u8] = &[0xb8, 110, 0, 0, 0];
const RET: &[u8] = &[0xc3];

/// A program header: flags, address, offset, size in the file and in memory.
type Segment = (u32, u64, u64, u64, u64);

fn elf(segments: &[Segment], text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([2u16.to_le_bytes(), 62u16.to_le_bytes()].concat());
    bytes.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS as u64, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [64u16, 56, segments.len() as u16, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for (flags, address, offset, stored, size) in segments {
        bytes.extend([1u32.to_le_bytes(), flags.to_le_bytes()].concat());
        for word in [*offset, *address, *address, *stored, *size, 0x1000] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.resize(HEADERS, 0);
    bytes.extend(text);
    bytes
}

/// A program of nothing but this text.
fn program(text: &[u8]) -> Vec<u8> {
    let size = text.len() as u64;
    elf(&[(5, BASE + HEADERS as u64, HEADERS as u64, size, size)], text)
}

fn find(text: &[u8]) -> Result<Vec<Site>, Reason> {
    let file = program(text);
    sites::find(&image::read(&file)?, &file)
}

/// Enough code for what comes before and behind to be judged.
fn between(text: &[&[u8]]) -> Vec<u8> {
    let around = [0x48, 0x89, 0xd8, 0x53, 0x5b].repeat(24);
    [&around[..], &text.concat(), &around, RET].concat()
}

/// Where `between` puts its text.
const AT: u64 = BASE + HEADERS as u64 + 120;

fn places(found: &[Site]) -> Vec<(u64, u64, u64, u64)> {
    found.iter().map(|site| (site.start - AT, site.call - AT, site.next - AT, site.end - AT)).collect()
}

#[test]
fn a_file_that_is_cut_off_is_refused_wherever_it_is() {
    let whole = program(&between(&[GETPPID, SYSCALL]));
    assert_eq!(image::read(&whole).expect("it is whole").kind, Kind::Static);
    for length in 0..whole.len() {
        assert!(image::read(&whole[..length]).is_err(), "{length} of {}", whole.len());
    }
}

#[test]
fn segments_that_contradict_each_other_are_refused() {
    let text = between(&[GETPPID, SYSCALL]);
    let (at, size) = (HEADERS as u64, text.len() as u64);
    let own = (5, BASE + at, at, size, size);
    for (other, reason) in [
        ((4, BASE + at, at, size, size), Reason::Overlapping),
        ((4, BASE + at + 16, at + 16, 8, 8), Reason::Overlapping),
        ((4, BASE, 0, 8, 8), Reason::Overlapping),
        ((7, BASE + 0x10_0000, at, size, size), Reason::WritableText),
        ((4, BASE + 0x10_0000, at, u64::MAX, u64::MAX), Reason::Malformed),
        ((4, BASE + 0x10_0000, u64::MAX - 0xfff, 8, 8), Reason::Malformed),
        ((4, BASE + 0x10_0000, at, 16, 8), Reason::Malformed),
        ((4, u64::MAX - 0xfff, at, 8, 0x1000), Reason::Malformed),
        ((4, BASE + 0x10_0123, at, 8, 8), Reason::Malformed),
    ] {
        assert_eq!(image::read(&elf(&[own, other], &text)), Err(reason), "{other:x?}");
    }
    assert_eq!(image::read(&elf(&[(4, BASE + at, at, size, size)], &text)), Err(Reason::NoText));
    assert_eq!(image::read(&elf(&[], &text)), Err(Reason::Malformed));
}

#[test]
fn what_is_no_program_of_this_machine_is_named() {
    let whole = program(&between(&[GETPPID, SYSCALL]));
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        image::read(&bytes).map(|image| image.kind)
    };
    assert_eq!(image::read(b"#!/bin/sh\n"), Err(Reason::Script));
    assert_eq!(image::read(b""), Err(Reason::NotElf));
    assert_eq!(with(4, 1), Err(Reason::OtherMachine));
    assert_eq!(with(18, 183), Err(Reason::OtherMachine));
    assert_eq!(with(16, 1), Err(Reason::OtherMachine));
    assert_eq!(with(16, 3), Ok(Kind::StaticPie));
}

#[test]
fn a_jump_stands_before_the_call_if_it_can() {
    let found = find(&between(&[GETPPID, SYSCALL])).expect("one");
    assert_eq!(places(&found), [(0, 5, 7, 5)]);
    assert!(found[0].is_kept());
}

#[test]
fn a_call_that_is_jumped_to_is_displaced_with_what_follows() {
    // jmp to the system call itself, from far and from near.
    for jump in [&[0xeb, 5][..], &[0xe9, 5, 0, 0, 0]] {
        let found =
            find(&between(&[jump, GETPPID, SYSCALL, &[0x48, 0x3d, 1, 0xf0, 0xff, 0xff]])).expect("one");
        let call = jump.len() as u64 + 5;
        assert_eq!(places(&found), [(call, call, call + 2, call + 8)]);
    }
    // And behind it, too: no jump fits.
    let text = between(&[&[0xeb, 7, 0xeb, 7], GETPPID, SYSCALL, &[0x48, 0x89, 0xc0, 0x48, 0x89, 0xc0]]);
    assert_eq!(find(&text), Err(Reason::DoesNotFit));
}

#[test]
fn calls_without_room_are_refused() {
    assert_eq!(find(&between(&[GETPPID, SYSCALL, GETPPID, SYSCALL])).map(|found| found.len()), Ok(2));
    assert_eq!(find(&between(&[SYSCALL, SYSCALL])).map(|found| found.len()), Ok(2));
    // A call's return address must stay where it is.
    let call = &[0xe8, 0, 0, 0, 0];
    assert_eq!(find(&between(&[call, SYSCALL, call])), Err(Reason::DoesNotFit));
    assert_eq!(find(RET), Err(Reason::NoSites));
    assert_eq!(find(&between(&[&[0xf3, 0x48, 0x0f, 0xae, 0xd8], GETPPID, SYSCALL])), Err(Reason::UsesGs));
}

#[test]
fn the_return_from_a_handler_is_left_alone() {
    for number in [&[0xb8, 15, 0, 0, 0][..], &[0x48, 0xc7, 0xc0, 15, 0, 0, 0]] {
        assert_eq!(find(&between(&[number, SYSCALL])), Err(Reason::NoSites));
    }
}

#[test]
fn numbers_that_look_like_a_call_are_none() {
    // mov eax, 0x11050f11; mov rax, imm64; cmp with rip-relative memory.
    let numbers: [&[u8]; 3] = [
        &[0xb8, 0x11, 0x0f, 0x05, 0x11],
        &[0x48, 0xb8, 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05, 0x0f, 0x05],
        &[0x81, 0x3d, 0x0f, 0x05, 0, 0, 0x0f, 0x05, 0, 0],
    ];
    assert_eq!(find(&between(&numbers)), Err(Reason::NoSites));
    let found = find(&between(&[numbers[1], GETPPID, SYSCALL])).expect("one");
    assert_eq!(places(&found), [(10, 15, 17, 15)]);
}

#[test]
fn data_that_look_like_a_call_are_doubted() {
    let words = b"some words in the text, with \x0f\x05 in between and more of them behind";
    assert_eq!(find(&between(&[GETPPID, SYSCALL, RET, words])).map(|found| found.len()), Ok(1), "an operand");
    let table = b"more words, of which the last is no number, no, no, no, no\x0f\x05 and more of them behind";
    assert_eq!(find(&between(&[GETPPID, SYSCALL, RET, table])), Err(Reason::Undecided));
    let zeros = [&[0; 64][..], SYSCALL, &[0; 64]].concat();
    assert!(find(&between(&[RET, &zeros])).is_err());
}

#[test]
fn a_file_of_nothing_else_is_refused_at_once() {
    let began = std::time::Instant::now();
    for text in [
        SYSCALL.repeat(1 << 20),
        [GETPPID, SYSCALL].concat().repeat(1 << 18),
        [&[0x0f, 0xae, 0xf0][..]].concat().repeat(1 << 18),
        [&b"\x70\x0f\x05\x70"[..]].concat().repeat(1 << 18),
    ] {
        assert!(find(&text).is_err());
    }
    // A build for tests takes 55 s; one whose time grows with the square would take hours.
    assert!(began.elapsed().as_secs() < 300, "{:?}", began.elapsed());
}

/// Instructions of all lengths, with operands that look like others; none of them a system call, a return from a handler, or odd.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![any::<u32>(), Just(0x050f_050f), Just(0x0f05_0f05), Just(0xe9e8_050f)];
    let with = |bytes: &'static [u8]| move |number: u32| [bytes, &number.to_le_bytes()].concat();
    prop_oneof![
        Just(vec![0x90]),
        Just(vec![0x53]),
        Just(vec![0x48, 0x89, 0xd8]),
        Just(vec![0x4c, 0x89, 0x5c, 0x24, 0x08]),
        Just(vec![0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00]),
        number.clone().prop_map(with(&[0xba])),
        number.clone().prop_map(with(&[0x48, 0x3d])),
        number.clone().prop_map(with(&[0x48, 0x8b, 0x05])),
        number.clone().prop_map(with(&[0x48, 0x81, 0xc3])),
        number.prop_map(|number| {
            [&[0x49, 0xbb][..], &number.to_le_bytes(), &number.rotate_left(8).to_le_bytes()].concat()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Of code whose instructions are known: each call is found and none else, or the program is refused.
    #[test]
    fn calls_are_found_by_instruction(
        code in prop::collection::vec(prop_oneof![6 => instruction().prop_map(|bytes| (bytes, false)), 1 => Just((SYSCALL.to_vec(), true))], 1..200)
    ) {
        let mut text = Vec::new();
        let mut calls = Vec::new();
        for (bytes, is_call) in &code {
            if *is_call {
                calls.push(BASE + HEADERS as u64 + text.len() as u64);
            }
            text.extend(bytes);
        }
        match find(&text) {
            Ok(found) => prop_assert_eq!(found.iter().map(|site| site.call).collect::<Vec<_>>(), calls),
            Err(Reason::NoSites) => prop_assert!(calls.is_empty()),
            Err(reason) => prop_assert!(matches!(reason, Reason::DoesNotFit | Reason::TooNear | Reason::Undecided), "{}", reason),
        }
    }

    /// Nothing that a file says leads out of it.
    #[test]
    fn any_bytes_are_refused_or_patched(
        mut changes in prop::collection::vec((0usize..0x1100, any::<u8>()), 0..12),
        text in prop::collection::vec(any::<u8>(), 0..300),
        is_random in any::<bool>(),
    ) {
        let text = if is_random { text } else { between(&[GETPPID, SYSCALL]) };
        let mut file = program(&text);
        if changes.len() < 6 {
            // Most fields are in the first bytes.
            changes.iter_mut().for_each(|(at, _)| *at %= 128);
        }
        for (at, byte) in changes {
            if let Some(place) = file.get_mut(at) {
                *place = byte;
            }
        }
        let Ok(image) = image::read(&file) else { return Ok(()) };
        let Ok(found) = sites::find(&image, &file) else { return Ok(()) };
        for site in &found {
            prop_assert!(site.start <= site.call && site.call < site.next);
            prop_assert!(image.text.iter().any(|text| text.range().contains(&site.start) && text.range().contains(&(site.next - 1))));
        }
        let at = image.span.start.wrapping_sub(0x10_0000);
        let _ = patch::patch(&image, &file, &found, 0, at, at + 0x1000);
    }
}
