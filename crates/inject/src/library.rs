//! A library that is loaded into a program before the program begins, and is its handler from then on.
//!
//! It is a shared object that needs no other, and whose relocations are all relative: there is no loader in the program. Its entry is the
//! address of a [`Header`]. What is in its file is believed as that of a preloaded library: who starts the program names it.

use crate::blob::COUNTED;
use crate::program::Bytes;
use crate::reason::Reason;
use crate::remote::Remote;
use object::LittleEndian as Le;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

const PAGE: u64 = 4096;
/// What a header begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"SHNPKE02");
/// R_X86_64_RELATIVE
const RELATIVE: u64 = elf::R_X86_64_RELATIVE as u64;
/// DT_RELR
const RELR: u32 = 36;
/// An entry of DT_RELA.
const RELA: usize = 24;

/// What a library says of itself, by the words from its entry on: addresses, once it is relocated.
pub struct Header {
    /// `fn(program's stack, blob's text, its end, blob's handler, blob's zones)`, before the program begins. The stubs begin where the text ends.
    pub start: u64,
    /// `fn(state, frame) -> answer`.
    pub handler: u64,
    /// `fn(answer)`.
    pub deliver: u64,
    /// Which calls it is shown.
    pub shown: [u8; COUNTED],
}

/// A library's file, read.
pub struct Library {
    /// Whole pages of its memory, from its lowest address on, so far as they are in the file; relocated as if that were 0.
    image: Vec<u8>,
    /// How much memory that is in all.
    size: u64,
    /// What has which protection.
    segments: Vec<(Range<u64>, i32)>,
    /// Words that its address is to be added to.
    relative: Vec<usize>,
    /// Where its header is.
    entry: usize,
}

impl Library {
    /// Reads one.
    ///
    /// # Errors
    /// It cannot be read, or is not of that kind.
    pub fn read(path: &Path) -> Result<Self, Reason> {
        let file = File::open(path).map_err(|_| Reason::NoLibrary)?;
        let length = file.metadata().map_err(|_| Reason::NoLibrary)?.len();
        let bytes = Bytes::of(&file, usize::try_from(length).map_err(|_| Reason::NoLibrary)?);
        Self::parse(&bytes.map_err(|_| Reason::NoLibrary)?).ok_or(Reason::NoLibrary)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::<Le>::parse(bytes).ok()?;
        let mut library =
            Self { image: Vec::new(), size: 0, segments: Vec::new(), relative: Vec::new(), entry: 0 };
        let (mut table, mut size) = (0, 0);
        for segment in header.program_headers(Le, bytes).ok()? {
            if segment.p_type(Le) == elf::PT_TLS {
                return None;
            }
            for entry in segment.dynamic(Le, bytes).ok()?.unwrap_or_default() {
                match entry.tag32(Le)? {
                    elf::DT_NEEDED | elf::DT_REL | elf::DT_JMPREL | RELR => return None,
                    elf::DT_RELA => table = usize::try_from(entry.d_val(Le)).ok()?,
                    elf::DT_RELASZ => size = usize::try_from(entry.d_val(Le)).ok()?,
                    _ => {}
                }
            }
            if segment.p_type(Le) == elf::PT_LOAD {
                library.add(segment, bytes)?;
            }
        }
        for entry in library.image.get(table..table.checked_add(size)?)?.to_vec().chunks_exact(RELA) {
            let [at, kind, value] = [0, 8, 16].map(|at| word(entry, at));
            let at = usize::try_from(at?).ok()?;
            if kind? != RELATIVE || at % 8 != 0 {
                return None;
            }
            library.image.get_mut(at..at.checked_add(8)?)?.copy_from_slice(&value?.to_le_bytes());
            library.relative.push(at);
        }
        library.entry = usize::try_from(header.e_entry(Le)).ok()?;
        (word(&library.image, library.entry)? == MAGIC).then_some(library)
    }

    fn add(&mut self, segment: &elf::ProgramHeader64<Le>, bytes: &[u8]) -> Option<()> {
        /// Larger than any.
        const MOST: u64 = 64 << 20;
        let (at, size) = (segment.p_vaddr(Le), segment.p_memsz(Le));
        let end = at.checked_add(size).filter(|end| *end < MOST)?.next_multiple_of(PAGE);
        let pages = at / PAGE * PAGE..end;
        if pages.start < self.size {
            return None;
        }
        let flags = segment.p_flags(Le);
        let granted =
            [(elf::PF_R, libc::PROT_READ), (elf::PF_W, libc::PROT_WRITE), (elf::PF_X, libc::PROT_EXEC)];
        let access = granted.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, one)| all | one);
        if access & libc::PROT_WRITE != 0 && access & libc::PROT_EXEC != 0 {
            return None;
        }
        let stored = segment.data(Le, bytes).ok()?;
        if stored.len() as u64 > size {
            return None;
        }
        self.size = end;
        self.image.resize((at as usize + stored.len()).next_multiple_of(PAGE as usize), 0);
        self.image.get_mut(at as usize..at as usize + stored.len())?.copy_from_slice(stored);
        self.segments.push((pages, access));
        Some(())
    }

    /// Loads it into a stopped process, by the system call at `site`.
    pub fn load(&self, remote: &mut Remote, site: u64) -> Result<Header, Reason> {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let mapped = remote.call(site, libc::SYS_mmap, [0, self.size, 0, flags, u64::MAX, 0])?;
        let base = mapped.map_err(|_| Reason::MapFailed)?;
        let loaded = self.fill(remote, site, base);
        if loaded.is_err() {
            let _ = remote.call(site, libc::SYS_munmap, [base, self.size, 0, 0, 0, 0])?;
        }
        loaded
    }

    fn fill(&self, remote: &mut Remote, site: u64, base: u64) -> Result<Header, Reason> {
        for (pages, access) in &self.segments {
            let arguments = [base + pages.start, pages.end - pages.start, *access as u64, 0, 0, 0];
            if remote.call(site, libc::SYS_mprotect, arguments)?.is_err() {
                return Err(Reason::MapFailed);
            }
            let stored = pages.start as usize..(pages.end as usize).min(self.image.len());
            for (at, bytes) in self.runs(stored, base) {
                remote.write(base + at as u64, &bytes)?;
            }
        }
        let at = |number: usize| {
            word(&self.image, self.entry + 8 * number)
                .map(|word| word.wrapping_add(base))
                .ok_or(Reason::NoLibrary)
        };
        let shown =
            self.image.get(self.entry + 32..).and_then(|rest| rest.first_chunk()).ok_or(Reason::NoLibrary)?;
        Ok(Header { start: at(1)?, handler: at(2)?, deliver: at(3)?, shown: *shown })
    }

    /// The pages of `stored` that are not all zero, as it is to have them at `base`: those that are zero are so already, and take no memory.
    fn runs(&self, stored: Range<usize>, base: u64) -> impl Iterator<Item = (usize, Vec<u8>)> {
        let is_zero = move |at: usize| self.image[at..at + ZEROES.len()] == ZEROES;
        let pages: Vec<(usize, bool)> = stored.step_by(ZEROES.len()).map(|at| (at, is_zero(at))).collect();
        let runs: Vec<Range<usize>> = pages
            .chunk_by(|one, other| one.1 == other.1)
            .filter(|run| !run[0].1)
            .map(|run| run[0].0..run[0].0 + run.len() * ZEROES.len())
            .collect();
        runs.into_iter().map(move |run| {
            let mut bytes = self.image[run.clone()].to_vec();
            for at in self.relative.iter().filter(|at| run.contains(at)).map(|at| at - run.start) {
                let moved = word(&bytes, at).unwrap_or(0).wrapping_add(base);
                bytes[at..at + 8].copy_from_slice(&moved.to_le_bytes());
            }
            (run.start, bytes)
        })
    }
}

const ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_loader_or_is_cut_off_is_no_library() {
        let own = std::fs::read(std::env::current_exe().expect("a path")).expect("this program");
        assert!(Library::parse(&own).is_none(), "it needs libraries");
        for length in (0..4096).chain((4096..own.len()).step_by(own.len() / 50)) {
            assert!(Library::parse(&own[..length]).is_none());
        }
        // Each word of the headers, wrong.
        for at in (0..2048).step_by(4) {
            let mut other = own[..own.len().min(1 << 20)].to_vec();
            for word in [0, 0x7fff_ffff, u32::MAX] {
                other[at..at + 4].copy_from_slice(&word.to_le_bytes());
                assert!(Library::parse(&other).is_none());
            }
        }
    }
}
