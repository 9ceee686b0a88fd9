//! CLC messages of SMCv2.1, byte for byte as Linux sends them (`net/smc/smc_clc.h`); RFC 7609 has
//! version 1. Everything is big-endian.
//!
//! ```text
//! message = header, body, trailer
//! header  = eyecatcher[4] type[1] length[2] version<<4|flags[1]      8 bytes
//! trailer = eyecatcher[4]
//! ```
//!
//! The eyecatcher is EBCDIC: "SMCD" for the accept and confirm of SMC-D, "SMCR" for all others.
//! Decoding checks everything that decides how bytes are read, and overlooks what is reserved.
//! SMC-R is understood where a proposal offers it beside SMC-D; its accept and confirm are recognised
//! and refused, as no device here could serve them.

mod accept;
mod bytes;
mod decline;
pub mod handshake;
mod list;
mod proposal;

use core::fmt;

pub use accept::{AcceptConfirm, AcceptVersion, FirstContact, FirstContactV2x};
pub use decline::Decline;
pub use list::List;
pub use proposal::{
    Devices, GidChid, Ipv6Prefix, Paths, Prefix, Proposal, SmcdArea, SmcdV2Extension, V2Extension,
};

use bytes::{Fields, Writer};

/// Length of the longest message, a proposal with all lists full, in bytes.
pub const MAX_LEN: usize =
    40 + 40 + (8 + 17 * MAX_IPV6_PREFIXES) + 40 + 32 * MAX_EIDS + 48 + 10 * MAX_GIDS + 4;
/// Most IPv6 prefixes of a proposal.
pub const MAX_IPV6_PREFIXES: usize = 8;
/// Most UEIDs of a proposal.
pub const MAX_EIDS: usize = 8;
/// Most GID-CHID entries of a proposal; an emulated device takes two.
pub const MAX_GIDS: usize = 8;
/// `os_type` of Linux.
pub const OS_LINUX: u8 = 2;
/// Bit of the feature mask: the sender knows emulated ISM devices.
pub const FEATURE_EMULATED_ISM: u16 = 0x0001;

const _: () = assert!(MAX_LEN <= crate::session::CLC_MAX, "every message fits the broker's protocol");

const EYECATCHER_R: [u8; 4] = [0xE2, 0xD4, 0xC3, 0xD9];
const EYECATCHER_D: [u8; 4] = [0xE2, 0xD4, 0xC3, 0xC4];
const HEADER_LEN: usize = 8;
const TRAILER_LEN: usize = 4;
/// In byte 7 of an accept, confirm or decline: first contact, or out of sync.
const FLAG_FIRST_CONTACT: u8 = 0x08;

/// Any CLC message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The client's offer.
    Proposal(Proposal),
    /// The server's choice, with the token of its DMB.
    Accept(AcceptConfirm),
    /// The client's consent, with the token of its DMB.
    Confirm(AcceptConfirm),
    /// Either side's refusal.
    Decline(Decline),
}

impl Message {
    /// Reads one message, which must be all of `from`.
    pub fn decode(from: &[u8]) -> Result<Message, ClcError> {
        let header = Header::decode(from)?;
        // The trailer has been looked at; no field may reach into it.
        let body = from.len().saturating_sub(TRAILER_LEN);
        let fields = Fields(from.get(..body).unwrap_or(&[]));
        match header.kind {
            Kind::Proposal => Proposal::decode(&header, fields).map(Message::Proposal),
            Kind::Accept => AcceptConfirm::decode(&header, fields).map(Message::Accept),
            Kind::Confirm => AcceptConfirm::decode(&header, fields).map(Message::Confirm),
            Kind::Decline => Decline::decode(&header, fields).map(Message::Decline),
        }
    }

    /// Writes the message to the start of `to` and returns its length, at most [`MAX_LEN`] bytes.
    pub fn encode(&self, to: &mut [u8]) -> Result<usize, ClcError> {
        let room = to.len();
        let to = to
            .get_mut(..self.encoded_len())
            .ok_or(ClcError::Room { need: self.encoded_len(), have: room })?;
        let mut writer = Writer::new(to);
        match self {
            Message::Proposal(m) => m.encode(&mut writer)?,
            Message::Accept(m) => m.encode(Kind::Accept, &mut writer)?,
            Message::Confirm(m) => m.encode(Kind::Confirm, &mut writer)?,
            Message::Decline(m) => m.encode(&mut writer)?,
        }
        Ok(writer.written())
    }

    /// How many bytes [`Message::encode`] writes.
    pub fn encoded_len(&self) -> usize {
        match self {
            Message::Proposal(m) => m.encoded_len(),
            Message::Accept(m) | Message::Confirm(m) => m.encoded_len(),
            Message::Decline(m) => m.encoded_len(),
        }
    }
}

/// Why bytes are not a CLC message, or a message cannot be written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ClcError {
    /// A field reaches behind the end of the message.
    Truncated {
        /// Offset of the end of the field.
        need: usize,
        /// Bytes there are, without the trailer.
        have: usize,
    },
    /// The length that the header states is not the message's, or not one its type may have.
    Length {
        /// As stated.
        stated: usize,
        /// As found, or as it ought to be.
        actual: usize,
    },
    /// The first four bytes are not the eyecatcher.
    Eyecatcher([u8; 4]),
    /// The last four bytes do not repeat the eyecatcher.
    Trailer([u8; 4]),
    /// No message type has this number.
    Type(u8),
    /// Neither version 1 nor version 2.
    Version(u8),
    /// An accept or confirm of SMC-R.
    SmcR,
    /// More items than the list may hold.
    Count {
        /// Which list.
        list: &'static str,
        /// Items stated.
        count: usize,
        /// Most that are allowed.
        max: usize,
    },
    /// A field whose value the message cannot have.
    Value(&'static str),
    /// The buffer to write to is too small.
    Room {
        /// Bytes needed.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
}

impl fmt::Display for ClcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ClcError::Truncated { need, have } => {
                write!(f, "CLC message of {have} bytes has a field that ends at byte {need}")
            }
            ClcError::Length { stated, actual } => {
                write!(f, "CLC message states a length of {stated} bytes where it is {actual}")
            }
            ClcError::Eyecatcher(bytes) => {
                write!(f, "CLC message begins with {bytes:02x?}, not an eyecatcher")
            }
            ClcError::Trailer(bytes) => write!(f, "CLC message ends with {bytes:02x?}, not its eyecatcher"),
            ClcError::Type(kind) => write!(f, "CLC message of unknown type {kind}"),
            ClcError::Version(version) => write!(f, "CLC message of unknown version {version}"),
            ClcError::SmcR => f.write_str("CLC message is for SMC-R"),
            ClcError::Count { list, count, max } => {
                write!(f, "CLC message has {count} {list} where {max} is the most")
            }
            ClcError::Value(field) => write!(f, "CLC message with an impossible {field}"),
            ClcError::Room { need, have } => {
                write!(f, "CLC message of {need} bytes does not fit a buffer of {have}")
            }
        }
    }
}

impl core::error::Error for ClcError {}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Proposal = 1,
    Accept = 2,
    Confirm = 3,
    Decline = 4,
}

/// SMC's major version.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// Version 1: a GID of 64 bits, same IP subnet.
    V1 = 1,
    /// Version 2, of which releases 0 and 1 exist.
    V2 = 2,
}

/// The header, of which the first four bytes and the length have served their purpose.
struct Header {
    kind: Kind,
    version: Version,
    /// The lower four bits of byte 7.
    flags: u8,
    length: usize,
}

impl Header {
    /// Reads the header of a whole message, and checks that its end is where the header says.
    fn decode(from: &[u8]) -> Result<Header, ClcError> {
        let fields = Fields(from);
        let eyecatcher = fields.bytes(0)?;
        if eyecatcher != EYECATCHER_R && eyecatcher != EYECATCHER_D {
            return Err(ClcError::Eyecatcher(eyecatcher));
        }
        let kind = match fields.u8(4)? {
            1 => Kind::Proposal,
            2 => Kind::Accept,
            3 => Kind::Confirm,
            4 => Kind::Decline,
            other => return Err(ClcError::Type(other)),
        };
        let length = usize::from(fields.be16(5)?);
        let last = fields.u8(7)?;
        if length != from.len() || length < HEADER_LEN + TRAILER_LEN {
            return Err(ClcError::Length { stated: length, actual: from.len() });
        }
        let trailer = fields.bytes(length - TRAILER_LEN)?;
        if trailer != eyecatcher {
            return Err(ClcError::Trailer(trailer));
        }
        let version = match last >> 4 {
            1 => Version::V1,
            2 => Version::V2,
            other => return Err(ClcError::Version(other)),
        };
        match kind {
            Kind::Accept | Kind::Confirm if eyecatcher == EYECATCHER_R => return Err(ClcError::SmcR),
            Kind::Proposal | Kind::Decline if eyecatcher == EYECATCHER_D => {
                return Err(ClcError::Eyecatcher(eyecatcher));
            }
            _ => {}
        }
        Ok(Header { kind, version, flags: last & 0x0f, length })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        writer.bytes(&eyecatcher(self.kind))?;
        writer.u8(self.kind as u8)?;
        writer.be16(self.length as u16)?;
        writer.u8((self.version as u8) << 4 | self.flags & 0x0f)
    }

    fn expect_length(&self, actual: usize) -> Result<(), ClcError> {
        if self.length == actual { Ok(()) } else { Err(ClcError::Length { stated: self.length, actual }) }
    }
}

fn eyecatcher(kind: Kind) -> [u8; 4] {
    match kind {
        Kind::Accept | Kind::Confirm => EYECATCHER_D,
        Kind::Proposal | Kind::Decline => EYECATCHER_R,
    }
}
