//! Instructions for another place: encoded once, so that a process that only copies them needs no decoder, whose tables cost a millisecond.

use crate::reason::Reason;
use iced_x86::{BlockEncoder, BlockEncoderOptions, Instruction, InstructionBlock};

/// How far from its own place code is encoded: too far for a short branch.
const FAR: u64 = 256 << 20;
/// Distances between two encodings, which tell where an address is encoded.
const STEP: u32 = 0x0101_0100;
/// How long they may become.
pub const LONGEST: usize = 64;

/// Instructions that can be anywhere within reach of where they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// As they are `FAR` behind the first one's own place.
    pub bytes: Vec<u8>,
    /// Where in `bytes` there is a distance of four bytes.
    pub distances: Vec<u8>,
}

impl Moved {
    /// Encodes instructions that follow one another.
    pub(crate) fn of(instructions: &[Instruction]) -> Option<Self> {
        let Some(first) = instructions.first() else { return Some(Self::default()) };
        let encode = |at| {
            let block = InstructionBlock::new(instructions, at);
            BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok().map(|done| done.code_buffer)
        };
        let (here, there) =
            (encode(first.ip() + FAR)?, encode((first.ip() + FAR).checked_sub(u64::from(STEP))?)?);
        if here.len() != there.len() || here.len() > LONGEST {
            return None;
        }
        let mut distances = Vec::new();
        let mut at = 0;
        while at < here.len() {
            if here[at..] == there[at..] {
                break;
            }
            let word = |bytes: &[u8]| bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four));
            // The lowest byte of a distance is the same in both, so it is looked for where the first three differ next.
            match (word(&here), word(&there)) {
                (Some(a), Some(b)) if b.wrapping_sub(a) == STEP => {
                    distances.push(at as u8);
                    at += 4;
                }
                _ if here[at] == there[at] => at += 1,
                _ => return None,
            }
        }
        Some(Self { bytes: here, distances })
    }

    /// Their bytes at `place`, in a program where what was at `first` in its file lies `bias` higher.
    pub(crate) fn at(&self, first: u64, bias: u64, place: u64) -> Result<Vec<u8>, Reason> {
        let mut bytes = self.bytes.clone();
        for distance in &self.distances {
            let field = bytes.get_mut(usize::from(*distance)..).and_then(|rest| rest.first_chunk_mut());
            let field: &mut [u8; 4] = field.ok_or(Reason::Immovable)?;
            let nearer = (first + FAR).wrapping_add(bias).wrapping_sub(place) as i64;
            let now = nearer.checked_add(i64::from(i32::from_le_bytes(*field)));
            let now = now.and_then(|now| i32::try_from(now).ok()).ok_or(Reason::NoRoom)?;
            *field = now.to_le_bytes();
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn decoded(bytes: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
    }

    #[test]
    fn each_kind_of_operand_means_the_same_elsewhere() {
        for (bytes, distances) in [
            (&[0xb8, 39, 0, 0, 0][..], 0),                                // mov eax, 39
            (&[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff], 0),                   // cmp rax, -4095
            (&[0x77, 0x12], 1),                                           // ja short
            (&[0x0f, 0x84, 0, 1, 0, 0], 1),                               // je near
            (&[0xeb, 0xf0], 1),                                           // jmp short
            (&[0x48, 0x8b, 0x05, 0, 0x10, 0, 0], 1),                      // mov rax, [rip + x]
            (&[0xc7, 0x05, 0, 0x10, 0, 0, 1, 2, 3, 4], 1),                // mov dword [rip + x], imm
            (&[0x48, 0x89, 0xfa, 0x77, 0x12, 0x8b, 0x05, 4, 0, 0, 0], 2), // mov; ja; mov
        ] {
            let (from, bias, place) = (0x40_1000, 0x5555_0000_0000, 0x5555_0030_0000);
            let moved = Moved::of(&decoded(bytes, from)).expect("it can be moved");
            assert_eq!(moved.distances.len(), distances, "{bytes:x?}");
            let there = decoded(&moved.at(from, bias, place).expect("within reach"), place);
            for (a, b) in decoded(bytes, from).iter().zip(&there) {
                assert_eq!(a.mnemonic(), b.mnemonic());
                if a.near_branch_target() != 0 {
                    assert_eq!(a.near_branch_target() + bias, b.near_branch_target());
                }
                if a.is_ip_rel_memory_operand() {
                    assert_eq!(a.ip_rel_memory_address() + bias, b.ip_rel_memory_address());
                    assert_eq!(a.immediate32(), b.immediate32());
                }
            }
        }
    }

    #[test]
    fn what_is_out_of_reach_is_said_so() {
        let moved = Moved::of(&decoded(&[0x77, 0x12], 0x40_1000)).expect("it can be moved");
        assert_eq!(moved.at(0x40_1000, 0, 0x1_0000_0000), Err(Reason::NoRoom));
    }
}
