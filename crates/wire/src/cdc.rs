//! CDC, SMC-D's cursor exchange: 32 bytes at the start of a DMB (Linux `net/smc/smc_cdc.h`).
//!
//! | offset | length | field |
//! |---|---|---|
//! | 0 | 1 | type, 0xFE |
//! | 8 | 8 | producer cursor |
//! | 16 | 8 | consumer cursor |
//!
//! A cursor is one 64-bit word, written at once: wrap (16 bits), count (32 bits at byte 2), producer flags
//! (byte 6), connection state flags (byte 7). Host-endian, since the two ends share a host.
//!
//! A lane's own cursors count bytes since it opened and never wrap; [`Cursor::at`] says them in these terms.

use core::fmt;

use crate::DmbSize;

/// Length of a message in bytes.
pub const MESSAGE_LEN: usize = 32;
const TYPE: u8 = 0xFE;
const PROD_AT: usize = 8;
const CONS_AT: usize = 16;

/// Producer flags: the sender waits for room.
pub const WRITE_BLOCKED: u8 = 0x80;
/// Producer flags: urgent data is on its way.
pub const URGENT_PENDING: u8 = 0x40;
/// Producer flags: the byte before the cursor is urgent.
pub const URGENT_PRESENT: u8 = 0x20;
/// Producer flags: the sender asks for the consumer cursor.
pub const CONS_UPDATE_REQUESTED: u8 = 0x10;
/// Producer flags: validation after a link failed (SMC-R).
pub const FAILOVER_VALIDATION: u8 = 0x08;

/// State flags: the sender sends no more.
pub const DONE_WRITING: u8 = 0x80;
/// State flags: the sender has closed.
pub const CLOSED: u8 = 0x40;
/// State flags: the sender has closed and dropped bytes.
pub const ABORT: u8 = 0x20;

/// One cursor.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// How often `count` came round, modulo 65536.
    pub wrap: u16,
    /// Place in the ring, in bytes; less than the ring's size.
    pub count: u32,
    /// [`WRITE_BLOCKED`] and the others.
    pub prod_flags: u8,
    /// [`DONE_WRITING`] and the others.
    pub state_flags: u8,
}

impl Cursor {
    /// The cursor at so many bytes since the ring was opened, without flags.
    pub const fn at(offset: u64, ring: DmbSize) -> Cursor {
        let size = ring.bytes() as u64;
        Cursor { wrap: (offset / size) as u16, count: (offset % size) as u32, prod_flags: 0, state_flags: 0 }
    }

    /// The word in memory.
    pub const fn to_word(self) -> u64 {
        let [w0, w1] = self.wrap.to_ne_bytes();
        let [c0, c1, c2, c3] = self.count.to_ne_bytes();
        u64::from_ne_bytes([w0, w1, c0, c1, c2, c3, self.prod_flags, self.state_flags])
    }

    /// What a word in memory says. Any word is a cursor; whether its count lies within the ring is for
    /// the reader to check.
    pub const fn from_word(word: u64) -> Cursor {
        let [w0, w1, c0, c1, c2, c3, prod_flags, state_flags] = word.to_ne_bytes();
        Cursor {
            wrap: u16::from_ne_bytes([w0, w1]),
            count: u32::from_ne_bytes([c0, c1, c2, c3]),
            prod_flags,
            state_flags,
        }
    }
}

/// As the tools print it: wrap, a colon, count.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:08x}", self.wrap, self.count)
    }
}

/// A whole message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct CdcMessage {
    /// Up to where the sender of the message has written.
    pub prod: Cursor,
    /// Up to where the sender of the message has read.
    pub cons: Cursor,
}

impl CdcMessage {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[0] = TYPE;
        bytes[PROD_AT..PROD_AT + 8].copy_from_slice(&self.prod.to_word().to_ne_bytes());
        bytes[CONS_AT..CONS_AT + 8].copy_from_slice(&self.cons.to_word().to_ne_bytes());
        bytes
    }

    /// Reads a message, or `None` if its type is another one.
    pub fn decode(bytes: &[u8; MESSAGE_LEN]) -> Option<CdcMessage> {
        let [TYPE, _, _, _, _, _, _, _, rest @ ..] = bytes else { return None };
        let (prod, rest) = rest.split_first_chunk()?;
        let (cons, _) = rest.split_first_chunk()?;
        let cursor = |word: &[u8; 8]| Cursor::from_word(u64::from_ne_bytes(*word));
        Some(CdcMessage { prod: cursor(prod), cons: cursor(cons) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn bytes_are_where_the_kernel_has_them() {
        let prod = Cursor { wrap: 0x0102, count: 0x03040506, prod_flags: WRITE_BLOCKED, state_flags: ABORT };
        let bytes = CdcMessage { prod, cons: Cursor::default() }.encode();
        assert_eq!(bytes[0], 0xFE);
        assert_eq!(bytes[8..16], [0x02, 0x01, 0x06, 0x05, 0x04, 0x03, 0x80, 0x20]);
        assert!(bytes[1..8].iter().chain(&bytes[16..]).all(|&b| b == 0));
    }

    #[test]
    fn another_type_is_no_message() {
        assert_eq!(CdcMessage::decode(&[0; MESSAGE_LEN]), None);
    }

    #[test]
    fn offsets_wrap_at_the_rings_size() {
        let ring = DmbSize::MIN;
        assert_eq!(Cursor::at(0, ring).to_string(), "0000:00000000");
        assert_eq!(Cursor::at(16383, ring).to_string(), "0000:00003fff");
        assert_eq!(Cursor::at(16384, ring).to_string(), "0001:00000000");
        assert_eq!(Cursor::at(16384 * 65536 + 5, ring).to_string(), "0000:00000005");
        assert_eq!(Cursor::at((1 << 48) - 1, DmbSize::MAX).to_string(), "ffff:1fffffff");
    }

    fn cursor() -> impl Strategy<Value = Cursor> {
        (any::<u16>(), any::<u32>(), any::<u8>(), any::<u8>()).prop_map(
            |(wrap, count, prod_flags, state_flags)| Cursor { wrap, count, prod_flags, state_flags },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(prod in cursor(), cons in cursor()) {
            let message = CdcMessage { prod, cons };
            prop_assert_eq!(CdcMessage::decode(&message.encode()), Some(message));
        }

        #[test]
        fn any_word_is_a_cursor_and_back(word: u64) {
            prop_assert_eq!(Cursor::from_word(word).to_word(), word);
        }

        #[test]
        fn a_cursor_tells_its_offset_modulo_the_wraps(offset in 0u64..1 << 48, class in 0u8..16) {
            let ring = DmbSize::from_class(class).unwrap();
            let cursor = Cursor::at(offset, ring);
            let size = ring.bytes() as u64;
            prop_assert_eq!(u64::from(cursor.wrap) * size + u64::from(cursor.count), offset % (size << 16));
        }
    }
}
