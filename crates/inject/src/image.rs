//! What a program is, by its file: every number of it is checked before it is used.

use crate::reason::Reason;
use object::LittleEndian as Le;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;

type Header = FileHeader64<Le>;

/// How a program is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By the interpreter at this path, which loads what the program needs.
    Dynamic {
        /// PT_INTERP, without its zero.
        interpreter: Vec<u8>,
        /// Whether it names any library that it needs. A Go PIE names none.
        needs_libraries: bool,
    },
    /// By itself, at its own addresses.
    Static,
    /// By itself, at any address.
    StaticPie,
}

/// Bytes of the file and the address that they are loaded at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The address of the first byte, without the bias.
    pub address: u64,
    /// Where in the file.
    pub file: Range<usize>,
}

impl Text {
    /// Addresses.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address + self.file.len() as u64
    }
}

/// A program's file, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// How it is started.
    pub kind: Kind,
    /// e_entry.
    pub entry: u64,
    /// All that is loaded, from the lowest to the highest address.
    pub span: Range<u64>,
    /// What is executed, in ascending order: the executable sections if the file has sections, else the whole segments.
    pub text: Vec<Text>,
}

/// Whether a file gives its program rights that whoever executes it may not have. Such a program must not be traced: exec would take them.
pub fn is_privileged(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return true };
    let mut capability = [0u8; 64];
    metadata.mode() & (libc::S_ISUID | libc::S_ISGID) != 0
        || rustix::fs::fgetxattr(file, c"security.capability", &mut capability[..]).is_ok()
}

/// Reads a program's file.
///
/// # Errors
/// The file is no program that could be patched.
pub fn read(bytes: &[u8]) -> Result<Image, Reason> {
    if bytes.starts_with(b"#!") {
        return Err(Reason::Script);
    }
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(Reason::NotElf);
    }
    let malformed = |_| Reason::Malformed;
    // A 32-bit program's header is no header here.
    if bytes.get(4..6) != Some(&[elf::ELFCLASS64, elf::ELFDATA2LSB]) {
        return Err(Reason::OtherMachine);
    }
    let header = Header::parse(bytes).map_err(malformed)?;
    let kind = header.e_type(Le);
    if header.e_machine(Le) != elf::EM_X86_64 || !matches!(kind, elf::ET_EXEC | elf::ET_DYN) {
        return Err(Reason::OtherMachine);
    }
    let segments = header.program_headers(Le, bytes).map_err(malformed)?;
    let mut executable = Vec::new();
    let mut span: Option<Range<u64>> = None;
    for segment in segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD) {
        let memory = loaded(segment, bytes.len())?;
        // They ascend, as the ELF specification demands and the kernel's own sum of their sizes expects.
        if span.as_ref().is_some_and(|span| memory.start < span.end) {
            return Err(Reason::Overlapping);
        }
        span = Some(span.map_or(memory.start, |span| span.start)..memory.end);
        let flags = segment.p_flags(Le);
        if flags & elf::PF_X != 0 {
            if flags & elf::PF_W != 0 {
                return Err(Reason::WritableText);
            }
            let at = segment.p_offset(Le) as usize;
            executable.push(Text { address: memory.start, file: at..at + segment.p_filesz(Le) as usize });
        }
    }
    let span = span.ok_or(Reason::Malformed)?;
    let text = sections(header, bytes, &executable)?.unwrap_or(executable);
    if text.iter().all(|text| text.file.is_empty()) {
        return Err(Reason::NoText);
    }
    Ok(Image { kind: kind_of(header, bytes)?, entry: header.e_entry(Le), span, text })
}

/// The addresses of a segment whose bytes are all in the file, none of them where only the kernel can be.
fn loaded(segment: &elf::ProgramHeader64<Le>, length: usize) -> Result<Range<u64>, Reason> {
    let (start, size, stored) = (segment.p_vaddr(Le), segment.p_memsz(Le), segment.p_filesz(Le));
    let end = start.checked_add(size).filter(|end| *end < 1 << 47).ok_or(Reason::Malformed)?;
    let fits = segment.p_offset(Le).checked_add(stored).is_some_and(|end| end <= length as u64);
    if stored > size || !fits || (start ^ segment.p_offset(Le)) & 0xfff != 0 {
        return Err(Reason::Malformed);
    }
    Ok(start..end)
}

fn kind_of(header: &Header, bytes: &[u8]) -> Result<Kind, Reason> {
    let mut needs_libraries = false;
    let mut interpreter = None;
    for segment in header.program_headers(Le, bytes).map_err(|_| Reason::Malformed)? {
        if let Some(path) = segment.interpreter(Le, bytes).map_err(|_| Reason::Malformed)? {
            interpreter = Some(path.to_vec());
        }
        if let Some(entries) = segment.dynamic(Le, bytes).map_err(|_| Reason::Malformed)? {
            let entries = entries.iter().map(|entry| entry.tag32(Le));
            let mut tags = entries.take_while(|tag| *tag != Some(elf::DT_NULL));
            needs_libraries = tags.any(|tag| tag == Some(elf::DT_NEEDED));
        }
    }
    Ok(match interpreter {
        Some(interpreter) => Kind::Dynamic { interpreter, needs_libraries },
        None if header.e_type(Le) == elf::ET_DYN => Kind::StaticPie,
        None => Kind::Static,
    })
}

/// The executable sections. They part code from the read-only data that older linkers put into the same segment. `None`: it has no
/// sections.
fn sections(header: &Header, bytes: &[u8], segments: &[Text]) -> Result<Option<Vec<Text>>, Reason> {
    let table = header.section_headers(Le, bytes).map_err(|_| Reason::Malformed)?;
    let mut found = Vec::new();
    for section in table {
        let wanted = u64::from(elf::SHF_EXECINSTR | elf::SHF_ALLOC);
        if section.sh_flags(Le) & wanted != wanted || section.sh_type(Le) != elf::SHT_PROGBITS {
            continue;
        }
        let (address, at, size) = (section.sh_addr(Le), section.sh_offset(Le), section.sh_size(Le));
        // One that disagrees with the segments is a lie, or debug information of another file.
        let inside = segments.iter().any(|segment| {
            let before = address.wrapping_sub(segment.address);
            let length = segment.file.len() as u64;
            before <= length && size <= length - before && at == segment.file.start as u64 + before
        });
        if !inside {
            return Err(Reason::Malformed);
        }
        found.push(Text { address, file: at as usize..(at + size) as usize });
    }
    found.sort_by_key(|text| text.address);
    if found.windows(2).any(|pair| pair[0].range().end > pair[1].address) {
        return Err(Reason::Overlapping);
    }
    Ok(Some(found).filter(|found| !found.is_empty()))
}
