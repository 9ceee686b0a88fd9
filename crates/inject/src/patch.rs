//! Stubs and jumps: what is written where, for a program at its addresses.

use crate::blob::{description, offset};
use crate::image::Image;
use crate::reason::Reason;
use crate::sites::{JUMP, Site};

/// What one stub needs at most: displaced instructions twice, its own, and its row in the table.
pub const STUB: usize = 256;
/// The table in front of the stubs, by which a library finds what a stub's address belongs to: how many rows, and for each stub, in
/// ascending order, where it begins and where its description is, counted from the table.
pub const ROW: usize = 8;
/// `lea rcx, [rip + x]; jmp x`
const LEA: [u8; 3] = [0x48, 0x8d, 0x0d];
const JMP: u8 = 0xe9;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Bytes of the program that become a jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub at: u64,
    /// What must be there.
    pub was: [u8; JUMP as usize],
    /// What will be.
    pub now: [u8; JUMP as usize],
}

/// The table and the stubs of all sites, to be at `stubs`, and the jumps to them. The program lies `bias` above its file's addresses, and the blob's
/// code at `blob`.
///
/// # Errors
/// Something is out of reach or cannot be moved.
pub fn patch(
    image: &Image,
    file: &[u8],
    sites: &[Site],
    bias: u64,
    blob: u64,
    stubs: u64,
) -> Result<(Vec<u8>, Vec<Write>), Reason> {
    let mut bytes = Vec::with_capacity(sites.len() * 128);
    bytes.extend((sites.len() as u64).to_le_bytes());
    bytes.resize(bytes.len() + sites.len() * ROW, 0);
    let mut writes = Vec::with_capacity(sites.len());
    for (number, site) in sites.iter().enumerate() {
        let text =
            image.text.iter().find(|text| text.range().contains(&site.start)).ok_or(Reason::Malformed)?;
        bytes.resize(bytes.len().next_multiple_of(16), 0xcc);
        let mut stub = Stub { address: stubs, bytes: &mut bytes };
        let at = stub.here();
        let description = stub.site(site, bias, blob)?;
        let from = text.file.start + (site.start - text.address) as usize;
        let was = file.get(from..).and_then(|rest| rest.first_chunk()).ok_or(Reason::Malformed)?;
        let mut now = [JMP, 0, 0, 0, 0];
        now[1..].copy_from_slice(&near(at, site.start.wrapping_add(bias).wrapping_add(JUMP))?);
        writes.push(Write { at: site.start.wrapping_add(bias), was: *was, now });
        let row = [at, description].map(|address| ((address - stubs) as u32).to_le_bytes()).concat();
        bytes[ROW * (number + 1)..][..ROW].copy_from_slice(&row);
    }
    Ok((bytes, writes))
}

/// The distance from the end of an instruction.
fn near(to: u64, end: u64) -> Result<[u8; 4], Reason> {
    let distance = i32::try_from(to.wrapping_sub(end) as i64).map_err(|_| Reason::NoRoom)?;
    Ok(distance.to_le_bytes())
}

/// Stubs that are written one behind the other.
struct Stub<'a> {
    address: u64,
    bytes: &'a mut Vec<u8>,
}

impl Stub<'_> {
    fn here(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    /// Where its description is.
    fn site(&mut self, site: &Site, bias: u64, blob: u64) -> Result<u64, Reason> {
        self.bytes.extend(site.before.at(site.start, bias, self.here())?);
        let behind = (LEA.len() + 4 + 1 + 4) as u64;
        let description = self.here() + behind;
        self.enter(description, blob + offset::ENTRY as u64)?;
        let moved = description + (description::SIZE + 2 * description::CALL) as u64;
        let (call, next) = if site.is_kept() {
            (site.call.wrapping_add(bias), site.next.wrapping_add(bias))
        } else {
            (moved, moved + SYSCALL.len() as u64)
        };
        let behind = site.behind.at(site.next, bias, moved + SYSCALL.len() as u64)?;
        let [start, own, end] = [site.start, site.call, site.end].map(|at| at.wrapping_add(bias));
        for word in [call, next, start, own, end, behind.len() as u64] {
            self.bytes.extend(word.to_le_bytes());
        }
        for after in [offset::AFTER_THREAD, offset::AFTER_VFORK] {
            self.bytes.extend(SYSCALL);
            self.enter(description, blob + after as u64)?;
        }
        if !site.is_kept() {
            self.bytes.extend(SYSCALL);
            self.bytes.extend(behind);
            self.bytes.push(JMP);
            self.bytes.extend(near(end, self.here() + 4)?);
        }
        Ok(description)
    }

    fn enter(&mut self, description: u64, to: u64) -> Result<(), Reason> {
        self.bytes.extend(LEA);
        let end = self.here() + 4;
        self.bytes.extend(near(description, end)?);
        self.bytes.push(JMP);
        let end = self.here() + 4;
        self.bytes.extend(near(to, end)?);
        Ok(())
    }
}
