//! Patches a program that has been executed and not begun.

use crate::blob::{self, BLOCK, COUNTED, GUARD, STATE_AT, Words};
use crate::library::Library;
use crate::patch::{self, ROW, STUB, Write};
use crate::program::{Identity, Program};
use crate::reason::Reason;
use crate::remote::Remote;
use crate::sites::Site;
use libc::user_regs_struct;
use std::ffi::CStr;
use std::ops::Range;

const PAGE: u64 = 4096;
/// AT_HWCAP2: the GS base can be set without the kernel.
const FSGSBASE: u64 = 1 << 1;
/// How far a jump reaches, less some.
const REACH: u64 = (2 << 30) - (16 << 20);
/// How far above the program's end is looked for room, if there is none below: its heap grows there.
const HEAP: u64 = 1 << 30;
/// How much is left free below the program.
const APART: u64 = 64 << 10;

/// What a program is given.
pub struct Parts<'a> {
    /// Its system calls.
    pub sites: &'a [Site],
    /// A file with room for [`COUNTED`] words, for it to map and count in.
    pub counts: Option<&'a CStr>,
    /// What answers its calls.
    pub library: Option<&'a Library>,
}

/// Patches the program that `remote` is about to begin.
///
/// # Errors
/// Nothing is patched, and the program can go on as it is.
pub fn inject(remote: &mut Remote, program: &Program, parts: &Parts<'_>) -> Result<(), Reason> {
    if Identity::from(&remote.executable().map_err(|_| Reason::Gone)?) != program.identity {
        return Err(Reason::OtherFile);
    }
    let auxiliary = remote.auxiliary().map_err(|_| Reason::Gone)?;
    let of = |key| auxiliary.iter().find(|(name, _)| *name == key).map_or(0, |(_, value)| *value);
    if of(libc::AT_HWCAP2) & FSGSBASE == 0 {
        return Err(Reason::NoGsBase);
    }
    let bias = of(libc::AT_ENTRY).wrapping_sub(program.image.entry);
    let mut registers = remote.registers()?;
    let mask = remote.mask()?;
    remote.bind(true)?;
    remote.set_mask(u64::MAX)?;
    let done = load(remote, program, parts, bias, &registers);
    if let Ok(loaded) = &done {
        registers.gs_base = loaded.state;
        registers.rip = loaded.begin;
    }
    // The call that is left now is exec itself, and has been done.
    registers.orig_rax = u64::MAX;
    remote.set_registers(&registers)?;
    remote.set_mask(mask)?;
    remote.bind(false)?;
    done.map(|_| ())
}

/// Where the parts lie.
struct Area {
    /// The first thread's block without its guard, and the data behind it.
    data: Range<u64>,
    /// The blob's code, and the stubs.
    text: Range<u64>,
}

/// What the program begins with.
struct Loaded {
    /// The first thread's state.
    state: u64,
    /// Its first instruction.
    begin: u64,
}

/// Maps, loads and patches.
fn load(
    remote: &mut Remote,
    program: &Program,
    parts: &Parts<'_>,
    bias: u64,
    registers: &user_regs_struct,
) -> Result<Loaded, Reason> {
    let sites = parts.sites;
    let blob = blob::blob();
    let span = program.image.span.start.wrapping_add(bias)..program.image.span.end.wrapping_add(bias);
    let data = (BLOCK + blob.data.len()) as u64;
    let text = ((blob.text.len() + ROW + sites.len() * STUB) as u64).next_multiple_of(PAGE);
    let at = room(&remote.mappings().map_err(|_| Reason::Gone)?, &span, data + text).ok_or(Reason::NoRoom)?;
    // Of the first block the guard is not mapped at all, which saves a call.
    let area = Area { data: at + GUARD as u64..at + data, text: at + data..at + data + text };
    let stubs = area.text.start + blob.text.len() as u64;
    let (stubs, writes) = patch::patch(&program.image, &program.bytes, sites, bias, area.text.start, stubs)?;

    let site = sites.first().ok_or(Reason::NoSites)?.call.wrapping_add(bias);
    map(remote, site, &area)?;
    let done = (|| {
        let counters = parts.counts.map_or(Ok(0), |path| count_in(remote, site, registers.rsp, path))?;
        let library = parts.library.map(|library| library.load(remote, site)).transpose()?;
        let mut data = blob.data.to_vec();
        let words = Words {
            handler: library
                .as_ref()
                .map_or(area.text.start + blob.handler as u64, |library| library.handler),
            counts: counters,
            helper: std::process::id(),
            first: registers.rip,
            start: library.as_ref().map_or(0, |library| library.start),
            deliver: library.as_ref().map_or(0, |library| library.deliver),
        };
        data[..words.bytes().len()].copy_from_slice(&words.bytes());
        let shown = blob::shown(library.as_ref().map(|library| &library.shown));
        data[blob.shown..blob.shown + shown.len()].copy_from_slice(&shown);
        remote.write(at + BLOCK as u64, &data)?;
        remote.write(at + STATE_AT as u64, &blob::state(at))?;
        remote.write(area.text.start, &[blob.text, &stubs].concat())?;
        write(remote, &writes)
    })();
    if let Err(reason) = done {
        for part in [area.data, area.text] {
            let _ = remote.call(site, libc::SYS_munmap, [part.start, part.end - part.start, 0, 0, 0, 0])?;
        }
        return Err(reason);
    }
    Ok(Loaded { state: at + STATE_AT as u64, begin: area.text.start + blob.begin as u64 })
}

/// Maps both parts. The code is never writable: what forbids that to programs does not forbid this.
fn map(remote: &mut Remote, site: u64, area: &Area) -> Result<(), Reason> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let parts =
        [(&area.data, libc::PROT_READ | libc::PROT_WRITE), (&area.text, libc::PROT_READ | libc::PROT_EXEC)];
    for (number, (part, protection)) in parts.into_iter().enumerate() {
        let arguments = [part.start, part.end - part.start, protection as u64, flags as u64, u64::MAX, 0];
        if remote.call(site, libc::SYS_mmap, arguments)? != Ok(part.start) {
            for (part, _) in &parts[..number] {
                let _ =
                    remote.call(site, libc::SYS_munmap, [part.start, part.end - part.start, 0, 0, 0, 0])?;
            }
            return Err(Reason::MapFailed);
        }
    }
    Ok(())
}

/// Maps the file of counters. Its path is put below the stack, where nothing is yet.
fn count_in(remote: &mut Remote, site: u64, stack: u64, path: &CStr) -> Result<u64, Reason> {
    let bytes = path.to_bytes_with_nul();
    let at = (stack - 256 - bytes.len() as u64) & !15;
    remote.write(at, bytes)?;
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
    let opened = remote.call(site, libc::SYS_open, [at, flags, 0, 0, 0, 0])?;
    remote.write(at, &vec![0; bytes.len()])?;
    let descriptor = opened.map_err(|_| Reason::MapFailed)?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let arguments = [0, 8 * COUNTED as u64, protection, libc::MAP_SHARED as u64, descriptor, 0];
    let mapped = remote.call(site, libc::SYS_mmap, arguments)?;
    let _ = remote.call(site, libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
    mapped.map_err(|_| Reason::MapFailed)
}

/// Writes all jumps, or none. Neighbours go together: a system call for each page or so.
fn write(remote: &mut Remote, writes: &[Write]) -> Result<(), Reason> {
    let runs: Vec<&[Write]> = writes.chunk_by(|a, b| b.at - a.at < PAGE).collect();
    let mut found = Vec::with_capacity(runs.len());
    for run in &runs {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let mut bytes = vec![0; (last.at - first.at) as usize + last.was.len()];
        remote.read(first.at, &mut bytes)?;
        let before = bytes.clone();
        for one in *run {
            let place = (one.at - first.at) as usize..(one.at - first.at) as usize + one.was.len();
            if bytes[place.clone()] != one.was {
                return Err(Reason::TextDiffers);
            }
            bytes[place].copy_from_slice(&one.now);
        }
        found.push((first.at, before, bytes));
    }
    for (number, (at, _, bytes)) in found.iter().enumerate() {
        if let Err(reason) = remote.write(*at, bytes) {
            for (at, before, _) in &found[..=number] {
                let _ = remote.write(*at, before);
            }
            return Err(reason);
        }
    }
    Ok(())
}

/// Where `size` bytes are free within reach of all of the program: below it, where no heap grows, or far above.
fn room(mappings: &[Range<u64>], span: &Range<u64>, size: u64) -> Option<u64> {
    let below = mappings.iter().filter(|mapping| mapping.start < span.start).map(|mapping| mapping.end).max();
    let lowest = below.unwrap_or(0).max(APART);
    let end = (span.start & !(PAGE - 1)).saturating_sub(APART);
    if let Some(at) = end.checked_sub(size).filter(|at| *at >= lowest && span.end - at < REACH) {
        return Some(at);
    }
    let mut at = (span.end + HEAP).next_multiple_of(PAGE);
    for mapping in mappings {
        if mapping.start >= at + size {
            break;
        }
        at = at.max(mapping.end);
    }
    (at + size - span.start < REACH).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_below_or_far_above_and_never_out_of_reach() {
        let program = 0x40_0000..0x50_0000;
        let mapped = [program.clone(), 0x7f00_0000_0000..0x7f00_0001_0000];
        assert_eq!(room(&mapped, &program, 0x1_0000), Some(0x3e_0000));
        let above = program.end + HEAP;
        assert_eq!(room(&mapped, &program, 0x40_0000), Some(above));
        let full = [0x1000..0x3f_f000, program.clone(), above..above + 0x1000];
        assert_eq!(room(&full, &program, 0x1_0000), Some(above + 0x1000));
        let taken = [0x1000..0x3f_f000, program.clone(), above..above + REACH];
        assert_eq!(room(&taken, &program, 0x1_0000), None);
        assert_eq!(room(&mapped, &(0x40_0000..0x40_0000 + REACH), 0x1_0000), None);
    }
}
