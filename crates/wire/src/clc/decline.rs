//! Decline: the refusal, with its reason.

use super::bytes::{Fields, Writer};
use super::{
    ClcError, FLAG_FIRST_CONTACT, HEADER_LEN, Header, Kind, OS_LINUX, TRAILER_LEN, Version, eyecatcher,
};
use crate::{PeerId, Reason};

const BODY_LEN_V1: usize = 16;
const BODY_LEN_V2: usize = 32;

/// "No, because": the sender stays on TCP, and so must the receiver.
///
/// ```text
/// after the header: id_for_peer[8] diagnosis[4] os_type<<4[1] reserved[3]
/// version 2 adds:   diagnosis[4] four times
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Decline {
    /// The message's version; version 1 has no `v2_diagnoses`.
    pub version: Version,
    /// The sender knows the link group that the receiver thought new, or the other way round.
    pub out_of_sync: bool,
    /// The sender.
    pub peer_id: PeerId,
    /// The reason's number. A peer may send one that [`Reason::from_code`] does not know.
    pub diagnosis: u32,
    /// The sender's operating system, 0-15; see [`OS_LINUX`].
    pub os: u8,
    /// Further reasons, in version 2.
    pub v2_diagnoses: [u32; 4],
}

impl Decline {
    /// What Shunpike sends.
    pub const fn new(peer_id: PeerId, reason: Reason) -> Decline {
        Decline {
            version: Version::V2,
            out_of_sync: matches!(reason, Reason::Sync),
            peer_id,
            diagnosis: reason.code(),
            os: OS_LINUX,
            v2_diagnoses: [0; 4],
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        message_len(self.version)
    }

    pub(super) fn decode(header: &Header, fields: Fields<'_>) -> Result<Decline, ClcError> {
        header.expect_length(message_len(header.version))?;
        let v2_diagnoses = match header.version {
            Version::V1 => [0; 4],
            Version::V2 => [fields.be32(24)?, fields.be32(28)?, fields.be32(32)?, fields.be32(36)?],
        };
        Ok(Decline {
            version: header.version,
            out_of_sync: header.flags & FLAG_FIRST_CONTACT != 0,
            peer_id: PeerId(fields.bytes(8)?),
            diagnosis: fields.be32(16)?,
            os: fields.u8(20)? >> 4,
            v2_diagnoses,
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        if self.os > 0x0f {
            return Err(ClcError::Value("operating system"));
        }
        let flags = if self.out_of_sync { FLAG_FIRST_CONTACT } else { 0 };
        let header = Header { kind: Kind::Decline, version: self.version, flags, length: self.encoded_len() };
        header.encode(writer)?;
        writer.bytes(&self.peer_id.0)?;
        writer.be32(self.diagnosis)?;
        writer.u8(self.os << 4)?;
        writer.zeros::<3>()?;
        if self.version == Version::V2 {
            for diagnosis in self.v2_diagnoses {
                writer.be32(diagnosis)?;
            }
        }
        writer.bytes(&eyecatcher(Kind::Decline))
    }
}

const fn message_len(version: Version) -> usize {
    let body = match version {
        Version::V1 => BODY_LEN_V1,
        Version::V2 => BODY_LEN_V2,
    };
    HEADER_LEN + body + TRAILER_LEN
}
