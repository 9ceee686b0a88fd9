//! Where a program makes system calls, and how a jump fits there.
//!
//! Bytes are found by search and judged by decoding. Instructions are at most 15 bytes long, so of 15 neighbouring bytes of code one at
//! least begins an instruction. If the streams that begin at each of them agree at a place further on, the program's own stream agrees
//! with them, wherever it began. That needs no symbols, and only a few instructions of the program are decoded.

use crate::image::{Image, Text};
use crate::moved::Moved;
use crate::reason::Reason;
use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use std::ops::Range;

/// How long the jump is.
pub const JUMP: u64 = 5;
/// The longest instruction.
const LONGEST: usize = 15;
/// How far back streams begin: further, if they do not agree.
const BACK: [usize; 5] = [64, 160, 640, 2560, 10240];
/// How much of what comes before a call must look like code.
const JUDGED: u64 = 48;
/// How many places are looked at: programs of a hundred megabytes have some thousands that are none, and a file may consist of nothing
/// else.
const MOST: usize = 1 << 16;
/// How many branches to one place are looked at.
const MOST_BRANCHES: usize = 256;
/// How far from a call a jump may reach into the bytes that are replaced: displaced instructions and the jump.
const NEAR: u64 = 32;

/// A system call. The jump stands at `start`; what is displaced is `start..end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the jump is written.
    pub start: u64,
    /// The system call's instruction.
    pub call: u64,
    /// The instruction behind it.
    pub next: u64,
    /// The first instruction that is not displaced.
    pub end: u64,
    /// What is displaced before the call.
    pub before: Moved,
    /// What is displaced behind it.
    pub behind: Moved,
}

impl Site {
    /// Whether the system call's own instruction stays where it is. Then the kernel, debuggers, filters and the program's own handlers see
    /// the program's own address while it waits.
    pub fn is_kept(&self) -> bool {
        self.end == self.call
    }
}

/// One stretch of text.
struct Code<'a> {
    address: u64,
    bytes: &'a [u8],
}

impl<'a> Code<'a> {
    fn new(text: &Text, file: &'a [u8]) -> Option<Self> {
        Some(Self { address: text.address, bytes: file.get(text.file.clone())? })
    }

    fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }

    /// Decodes from `at` on.
    fn decode(&self, at: u64) -> impl Iterator<Item = Instruction> + use<'a> {
        let bytes = &self.bytes[((at - self.address) as usize).min(self.bytes.len())..];
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter()
    }

    /// The program's own instructions up to that which covers `at`, at least from `context` bytes before it on. `None`: they are not
    /// certain.
    fn agreed(&self, at: u64, context: u64) -> Option<Vec<Instruction>> {
        let start = |back: usize| at.saturating_sub(back as u64).max(self.address);
        BACK.into_iter().map(start).find_map(|from| {
            let found = self.agreed_from(from, at)?;
            let first = found.first()?.ip();
            (first == self.address || first + context <= at).then_some(found)
        })
    }

    fn agreed_from(&self, from: u64, at: u64) -> Option<Vec<Instruction>> {
        let mut common: Option<Vec<Instruction>> = None;
        // Where the text begins an instruction does.
        let starts = if from == self.address { 1 } else { LONGEST as u64 };
        for start in from..(from + starts).min(at + 1) {
            let Some(stream) = self.stream(start, at) else { continue };
            common = match common {
                None => Some(stream),
                Some(common) => {
                    let same = common
                        .iter()
                        .rev()
                        .zip(stream.iter().rev())
                        .take_while(|(a, b)| a.ip() == b.ip() && a.len() == b.len());
                    let count = same.count();
                    if count == 0 {
                        return None;
                    }
                    Some(common[common.len() - count..].to_vec())
                }
            };
        }
        common
    }

    /// What one stream decodes, up to that which covers `at`. `None`: it meets what is no instruction, or ends before.
    fn stream(&self, start: u64, at: u64) -> Option<Vec<Instruction>> {
        let mut found = Vec::with_capacity(32);
        for instruction in self.decode(start) {
            if instruction.is_invalid() {
                return None;
            }
            found.push(instruction);
            if instruction.next_ip() > at {
                return Some(found);
            }
        }
        None
    }
}

/// All system calls of a program, in the order of their addresses.
///
/// Left out are those that only return from a signal handler: debuggers and unwinders know them by their bytes, and they need nobody.
///
/// # Errors
/// One of them cannot be patched: then none must be.
pub fn find(image: &Image, file: &[u8]) -> Result<Vec<Site>, Reason> {
    let codes: Vec<Code> = image.text.iter().filter_map(|text| Code::new(text, file)).collect();
    let mut calls = Vec::new();
    let mut looked = 0;
    for (index, code) in codes.iter().enumerate() {
        for at in memchr::memmem::find_iter(code.bytes, b"\x0f\x05") {
            looked += 1;
            if looked > MOST {
                return Err(Reason::TooMany);
            }
            if let Some(stream) = call(code, code.address + at as u64)? {
                calls.push((index, stream));
            }
        }
        let mut fences = memchr::memmem::find_iter(code.bytes, b"\x0f\xae").take(MOST);
        if fences.any(|at| sets_gs(code, at)) {
            return Err(Reason::UsesGs);
        }
    }
    if calls.is_empty() {
        return Err(Reason::NoSites);
    }
    let targets =
        Targets::of(&codes, calls.iter().filter_map(|(_, stream)| stream.last()).map(Instruction::ip));
    let fit = |(index, stream): &(usize, Vec<Instruction>)| fit(&codes, &codes[*index], stream, &targets);
    let sites: Vec<Site> = calls.iter().map(fit).collect::<Option<_>>().ok_or(Reason::DoesNotFit)?;
    if sites.windows(2).any(|pair| pair[0].end.max(pair[0].start + JUMP) > pair[1].start) {
        return Err(Reason::TooNear);
    }
    Ok(sites)
}

/// Whether the bytes at `at` are a system call that is to be patched: then with what comes before it.
fn call(code: &Code, at: u64) -> Result<Option<Vec<Instruction>>, Reason> {
    let stream = code.agreed(at, JUDGED).ok_or(Reason::Undecided)?;
    let Some((call, before)) = stream.split_last() else { return Ok(None) };
    if call.mnemonic() != Mnemonic::Syscall {
        return Ok(None);
    }
    let near = before.iter().filter(|instruction| instruction.ip() + JUDGED > at);
    let behind = code.decode(call.next_ip()).take(4);
    let straight = behind.scan(true, |goes_on, instruction| {
        let here = *goes_on;
        *goes_on = instruction.flow_control() == FlowControl::Next;
        here.then_some(instruction)
    });
    if near.copied().chain(straight).any(|instruction| is_odd(&instruction)) {
        return Err(Reason::Undecided);
    }
    let returns = before.last().is_some_and(is_return_of_handler);
    Ok(Some(stream).filter(|_| !returns))
}

/// What data decode to, and programs do not do.
fn is_odd(instruction: &Instruction) -> bool {
    let strange = matches!(
        instruction.mnemonic(),
        Mnemonic::In
            | Mnemonic::Out
            | Mnemonic::Insb
            | Mnemonic::Insw
            | Mnemonic::Insd
            | Mnemonic::Outsb
            | Mnemonic::Outsw
            | Mnemonic::Outsd
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Retf
            | Mnemonic::Enter
            | Mnemonic::Int1
    );
    let is_privileged = instruction.is_privileged() && instruction.mnemonic() != Mnemonic::Hlt;
    // Two zeros.
    let is_nothing = instruction.code() == Opcode::Add_rm8_r8
        && instruction.memory_base() == Register::RAX
        && instruction.op1_register() == Register::AL
        && instruction.len() == 2;
    instruction.is_invalid() || strange || is_privileged || is_nothing
}

/// `mov $15, %eax`, before the call that returns from a signal handler.
fn is_return_of_handler(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Opcode::Mov_r32_imm32 | Opcode::Mov_rm64_imm32 | Opcode::Mov_rm32_imm32)
        && matches!(instruction.op0_register(), Register::EAX | Register::RAX)
        && instruction.immediate(1) == libc::SYS_rt_sigreturn as u64
}

/// Whether the bytes at `at` set the GS base.
fn sets_gs(code: &Code, at: usize) -> bool {
    if !code.bytes.get(at + 2).is_some_and(|byte| (0xd8..0xe0).contains(byte)) {
        return false;
    }
    let stream = code.agreed(code.address + at as u64, 0);
    stream.is_none_or(|stream| stream.last().is_some_and(|last| last.mnemonic() == Mnemonic::Wrgsbase))
}

/// Bytes near system calls that look like direct branches to somewhere near a system call.
struct Targets(Vec<Branch>);

struct Branch {
    target: u64,
    /// Its opcode's last byte, in this stretch of text.
    at: u64,
    code: usize,
}

impl Targets {
    fn of(codes: &[Code], calls: impl Iterator<Item = u64>) -> Self {
        // One bit for each 64 bytes of address, modulo the table: a first sieve.
        const BITS: usize = 1 << 16;
        let mut sieve = vec![0u64; BITS / 64];
        let place = |address: u64| ((address >> 6) as usize / 64 % (BITS / 64), (address >> 6) % 64);
        for call in calls {
            for address in [call.saturating_sub(NEAR), call, call + NEAR] {
                let (word, bit) = place(address);
                sieve[word] |= 1 << bit;
            }
        }
        let mut found = Vec::new();
        for (index, code) in codes.iter().enumerate() {
            for (at, &byte) in code.bytes.iter().enumerate() {
                let target = match (BRANCH[byte as usize], code.bytes.get(at + 1..)) {
                    (1, Some(rest)) => rest.first().map(|byte| at as i64 + 2 + i64::from(*byte as i8)),
                    (4, Some(rest)) => {
                        let near = rest.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
                        near.map(|near| at as i64 + 5 + near)
                    }
                    _ => None,
                };
                let Some(target) = target else { continue };
                let target = code.address.wrapping_add(target as u64);
                let (word, bit) = place(target);
                if sieve[word] >> bit & 1 != 0 {
                    found.push(Branch { target, at: code.address + at as u64, code: index });
                }
            }
        }
        found.sort_unstable_by_key(|branch| branch.target);
        Self(found)
    }

    /// Whether a direct branch leads into these bytes. What cannot be decided does.
    fn lead_into(&self, codes: &[Code], bytes: Range<u64>) -> bool {
        let first = self.0.partition_point(|branch| branch.target < bytes.start);
        let mut branches = self.0[first..].iter().take_while(|branch| branch.target < bytes.end);
        branches.clone().nth(MOST_BRANCHES).is_some()
            || branches.any(|branch| {
                let stream = codes[branch.code].agreed(branch.at, 0);
                let last = stream.as_ref().and_then(|stream| stream.last());
                last.is_none_or(|last| {
                    let jumps = last.op0_kind() == OpKind::NearBranch64;
                    jumps && last.near_branch_target() == branch.target
                })
            })
    }
}

/// How many bytes of displacement follow a byte, if it is the last of a direct branch's opcode. 0f 80 to 0f 8f are known by their second
/// byte.
const BRANCH: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0x70;
    while byte < 0x90 {
        table[byte] = if byte < 0x80 { 1 } else { 4 };
        byte += 1;
    }
    [table[0xe0], table[0xe1], table[0xe2], table[0xe3], table[0xeb]] = [1; 5];
    [table[0xe8], table[0xe9], table[0xf8]] = [4; 3];
    table
};

/// How a jump fits: before the call if it can, so that the call's instruction stays; else over it and what follows; else over both sides.
fn fit(codes: &[Code], code: &Code, stream: &[Instruction], targets: &Targets) -> Option<Site> {
    let (call, before) = stream.split_last()?;
    let (at, next) = (call.ip(), call.next_ip());
    let before: Vec<u64> =
        before.iter().rev().take_while(|one| is_movable(one)).map(Instruction::ip).collect();
    let behind = ends(code, next);
    let starts = || std::iter::once(at).chain(before.iter().copied()).filter(|start| at - start < NEAR - 8);
    let kept = starts().filter(|start| at - start >= JUMP).map(|start| (start, at));
    let moved = starts().flat_map(|start| behind.iter().map(move |end| (start, *end)));
    let mut ways = kept.chain(moved.filter(|(start, end)| end - start >= JUMP));
    // A branch behind the jump finds what was always there; one to the call itself would go past the stub.
    ways.find_map(|(start, end)| {
        let bypassed = (start + JUMP).max(at + u64::from(start < at));
        if targets.lead_into(codes, start + 1..bypassed) {
            return None;
        }
        let moved = |range: Range<u64>| {
            let displaced = code.decode(range.start).take_while(|one| one.ip() < range.end);
            Moved::of(&displaced.collect::<Vec<_>>())
        };
        let (before, behind) = (moved(start..at)?, moved(next..end.max(next))?);
        Some(Site { start, call: at, next, end, before, behind })
    })
}

/// Whether an instruction before a call can be executed elsewhere. Padding is no part of a function: an entry may follow.
fn is_movable(instruction: &Instruction) -> bool {
    let is_entry = matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop | Mnemonic::Int3);
    instruction.flow_control() == FlowControl::Next && !is_entry && !is_odd(instruction)
}

/// Where the displaced instructions behind a call may end. A call's return address must stay, so that unwinders find it; behind a return
/// only padding may be taken.
fn ends(code: &Code, next: u64) -> Vec<u64> {
    let mut ends = vec![next];
    let mut is_over = false;
    for instruction in code.decode(next).take_while(|one| one.ip() < next + JUMP) {
        let is_padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let flow = instruction.flow_control();
        let goes = matches!(
            flow,
            FlowControl::Next
                | FlowControl::Return
                | FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
        );
        let is_entry = matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Hlt);
        if !(is_padding || goes && !is_over) || is_entry || is_odd(&instruction) {
            break;
        }
        is_over |=
            !matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Interrupt);
        ends.push(instruction.next_ip());
    }
    // The text may end behind a return.
    ends.retain(|end| *end <= code.range().end);
    ends
}
