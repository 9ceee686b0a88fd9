//! What the two ends of a link group say to each other: LLC (RFC 7609, 4.5) over the brokers' connection, and the 32 bits that go with
//! each write.
//!
//! ```text
//! bits 31..24   23..16    15..0
//! slot 1..255 | cursor modulo 2^24        bytes of that connection have landed up to there (CDC's producer cursor)
//! 0           | kind    | argument        a word of the link itself, see `Word`
//! ```
//!
//! A ring has at most 2^23 bytes (8 MiB), so the cursor's 24 bits say by how much it has moved. The consumer cursor is written into the peer's
//! page of cursors, a 64-bit word for each slot, and told by [`Word::Consumed`].

use crate::engine::RToken;
use std::net::SocketAddr;

/// A connection of a group, from 1 to 255.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u8);

impl Slot {
    /// Most connections of a group (RFC 7609, 2.2; `smcr_max_conns_per_lgr`).
    pub const MOST: usize = 255;

    /// `None`: zero.
    pub fn new(number: u8) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// All.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=u8::MAX).map(Self)
    }
}

/// What a write tells.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Immediate {
    /// Bytes of a connection have landed, up to this cursor modulo 2^24.
    Produced(Slot, u32),
    /// A word of the link.
    Word(Word),
}

/// What is said through a link itself, behind all that was written through it before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// CONFIRM LINK, the server's request.
    ConfirmLink,
    /// The client's answer.
    LinkConfirmed,
    /// TEST LINK, request.
    TestLink,
    /// Its answer.
    LinkTested,
    /// The consumer cursor of this connection has been written into the page.
    Consumed(Slot),
    /// DELETE RKEY's answer: nothing more is written into this connection's ring.
    RkeyDeleted(Slot),
}

/// A cursor's bits in an immediate.
pub const CURSOR: u32 = (1 << 24) - 1;

impl Immediate {
    /// As 32 bits.
    pub fn pack(self) -> u32 {
        let word = |kind: u32, slot: u8| kind << 16 | u32::from(slot);
        match self {
            Self::Produced(slot, cursor) => u32::from(slot.0) << 24 | cursor & CURSOR,
            Self::Word(Word::ConfirmLink) => word(1, 0),
            Self::Word(Word::LinkConfirmed) => word(2, 0),
            Self::Word(Word::TestLink) => word(3, 0),
            Self::Word(Word::LinkTested) => word(4, 0),
            Self::Word(Word::Consumed(slot)) => word(5, slot.0),
            Self::Word(Word::RkeyDeleted(slot)) => word(6, slot.0),
        }
    }

    /// What a peer's 32 bits say. `None`: nothing that we know.
    pub fn unpack(bits: u32) -> Option<Self> {
        if let Some(slot) = Slot::new((bits >> 24) as u8) {
            return Some(Self::Produced(slot, bits & CURSOR));
        }
        let slot = u8::try_from(bits & 0xffff).ok()?;
        let word = match (bits >> 16, slot) {
            (1, 0) => Word::ConfirmLink,
            (2, 0) => Word::LinkConfirmed,
            (3, 0) => Word::TestLink,
            (4, 0) => Word::LinkTested,
            (5, slot) => Word::Consumed(Slot::new(slot)?),
            (6, slot) => Word::RkeyDeleted(Slot::new(slot)?),
            _ => return None,
        };
        Some(Self::Word(word))
    }
}

/// Which of a group's links, and which of its lives: the server counts them.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinkId {
    /// 0 or 1.
    pub number: u8,
    /// From 1 on.
    pub life: u32,
}

/// What has come of one connection, by who receives it (CDC's sequence number and producer cursor, with the failover validation of RFC
/// 7609, 4.6).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Which.
    pub slot: Slot,
    /// Immediates of the connection that have come, modulo 2^16.
    pub sequence: u16,
    /// Bytes, since the connection began.
    pub cursor: u64,
}

/// A ring that the peer may write into.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Its memory.
    pub token: RToken,
    /// Byte at which the ring begins there.
    pub offset: u64,
    /// Bytes, a power of two up to 2^23.
    pub size: u32,
}

/// An LLC message. CONFIRM LINK and TEST LINK go through the link itself ([`Word`]), and so does DELETE RKEY's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Llc {
    /// ADD LINK, by the server: the client is to connect there.
    AddLink {
        /// A new life.
        link: LinkId,
        /// Where the server's engine listens.
        at: SocketAddr,
    },
    /// DELETE LINK: the speaker has closed its endpoint.
    DeleteLink {
        /// Which.
        link: LinkId,
        /// What has come of each connection, through whatever link.
        seen: Vec<Seen>,
        /// DELETE RKEYs that the speaker has answered through this link: the answers may not have come.
        deleted: Vec<(Slot, u32)>,
    },
    /// CONFIRM RKEY: the speaker's ring for a connection. The peer may write into it.
    ConfirmRkey {
        /// Which.
        slot: Slot,
        /// How many rings the speaker had named before: tells the uses of a slot apart.
        serial: u32,
        /// Its ring.
        ring: Ring,
    },
    /// DELETE RKEY: the peer is to write no more into the speaker's ring for a connection.
    DeleteRkey {
        /// Which.
        slot: Slot,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_is_read_as_it_is_written() {
        let words = Slot::all().flat_map(|slot| [Word::Consumed(slot), Word::RkeyDeleted(slot)]);
        let plain = [Word::ConfirmLink, Word::LinkConfirmed, Word::TestLink, Word::LinkTested];
        for word in words.chain(plain) {
            let immediate = Immediate::Word(word);
            assert_eq!(Immediate::unpack(immediate.pack()), Some(immediate));
        }
        for slot in Slot::all() {
            for cursor in [0, 1, 77, CURSOR] {
                let immediate = Immediate::Produced(slot, cursor);
                assert_eq!(Immediate::unpack(immediate.pack()), Some(immediate));
            }
        }
        assert_eq!(Slot::all().count(), Slot::MOST);
    }

    /// A hostile peer's bits are read as what they are written as, or not at all.
    #[test]
    fn whatever_comes_is_something_or_nothing() {
        let mut known = 0;
        for bits in 0..1 << 24 {
            if let Some(immediate) = Immediate::unpack(bits) {
                assert_eq!(immediate.pack(), bits);
                known += 1;
            }
        }
        assert_eq!(known, 4 + 2 * Slot::MOST);
    }
}
