//! Accept and confirm: each names the sender's DMB. They have one layout.

use super::bytes::{Fields, Writer};
use super::{
    ClcError, FLAG_FIRST_CONTACT, HEADER_LEN, Header, Kind, Paths, TRAILER_LEN, Version, eyecatcher,
};
use crate::{Chid, DmbSize, DmbToken, Eid, Gid};

const BODY_LEN_V1: usize = 36;
const BODY_LEN_V2: usize = 66;
/// Where the first-contact extension begins.
const EXTENSION_AT: usize = HEADER_LEN + BODY_LEN_V2;
const EXTENSION_LEN: usize = 36;
/// What release 1 adds to the extension.
const EXTENSION_LEN_V2X: usize = 16;

/// An accept or a confirm of SMC-D.
///
/// ```text
/// after the header: gid[8] token[8] dmbe_idx[1] size_class<<4[1] reserved[2] link_id[4]
/// version 1:        reserved[12]
/// version 2:        chid[2] eid[32] gid_ext[8], and on first contact the extension
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AcceptConfirm {
    /// GID of the sender's device; `gid_ext` travels in version 2 only.
    pub gid: Gid,
    /// Names the sender's DMB.
    pub token: DmbToken,
    /// Size of the sender's DMB.
    pub size: DmbSize,
    /// Number of the link group, in the sender's count.
    pub link_id: u32,
    /// What the version adds.
    pub version: AcceptVersion,
}

/// What depends on the version of an [`AcceptConfirm`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AcceptVersion {
    /// Version 1.
    V1 {
        /// The two sides share no link group yet.
        first_contact: bool,
    },
    /// Version 2.
    V2 {
        /// CHID of the device chosen.
        chid: Chid,
        /// The EID agreed.
        eid: Eid,
        /// Present when the two sides share no link group yet.
        first_contact: Option<FirstContact>,
    },
}

/// First-contact extension: what the sides learn of one another once for a link group.
///
/// ```text
/// v2_direct<<7[1] os_type<<4|release[1] reserved[2] hostname[32]
/// from release 1: max_conns[1] max_links[1] feature_mask[2] vendor[4] reserved[8]
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FirstContact {
    /// SMC-R: the peers are reachable without a router.
    pub v2_direct: bool,
    /// The sender's operating system, 0-15; see [`OS_LINUX`](super::OS_LINUX).
    pub os: u8,
    /// SMC release agreed, 0-15.
    pub release: u8,
    /// The sender's name, padded with blanks.
    pub hostname: [u8; 32],
    /// The part that release 0 lacks; there it is neither read nor written.
    pub v2x: FirstContactV2x,
}

/// What release 1 adds to [`FirstContact`]. The numbers are zero for SMC-D.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct FirstContactV2x {
    /// Most connections of a link group (SMC-R).
    pub max_conns: u8,
    /// Most links of a link group (SMC-R).
    pub max_links: u8,
    /// Features that both sides know; see [`FEATURE_EMULATED_ISM`](super::FEATURE_EMULATED_ISM).
    pub feature_mask: u16,
    /// Experimental options of a vendor.
    pub vendor: u32,
}

impl AcceptConfirm {
    /// Whether the sender counts this as the first contact.
    pub fn is_first_contact(&self) -> bool {
        match self.version {
            AcceptVersion::V1 { first_contact } => first_contact,
            AcceptVersion::V2 { first_contact, .. } => first_contact.is_some(),
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        let body = match self.version {
            AcceptVersion::V1 { .. } => BODY_LEN_V1,
            AcceptVersion::V2 { first_contact: None, .. } => BODY_LEN_V2,
            AcceptVersion::V2 { first_contact: Some(extension), .. } => BODY_LEN_V2 + extension.encoded_len(),
        };
        HEADER_LEN + body + TRAILER_LEN
    }

    pub(super) fn decode(header: &Header, fields: Fields<'_>) -> Result<AcceptConfirm, ClcError> {
        if header.flags & 0x03 != Paths::SmcD as u8 {
            return Err(ClcError::Value("SMC type"));
        }
        let first_contact = header.flags & FLAG_FIRST_CONTACT != 0;
        let (gid_ext, version) = match header.version {
            Version::V1 => (0, AcceptVersion::V1 { first_contact }),
            Version::V2 => {
                let chid = Chid(fields.be16(32)?);
                let eid = Eid(fields.bytes(34)?);
                let first_contact =
                    if first_contact { Some(FirstContact::decode(fields, EXTENSION_AT)?) } else { None };
                (fields.be64(66)?, AcceptVersion::V2 { chid, eid, first_contact })
            }
        };
        // A DMB here holds one connection, so that its index can only be the first.
        if fields.u8(24)? != 0 {
            return Err(ClcError::Value("DMBE index"));
        }
        let message = AcceptConfirm {
            gid: Gid::new(fields.be64(8)?, gid_ext),
            token: DmbToken(fields.be64(16)?),
            size: DmbSize::from_class(fields.u8(25)? >> 4).ok_or(ClcError::Value("DMBE size"))?,
            link_id: fields.be32(28)?,
            version,
        };
        header.expect_length(message.encoded_len())?;
        Ok(message)
    }

    pub(super) fn encode(&self, kind: Kind, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        let first_contact = if self.is_first_contact() { FLAG_FIRST_CONTACT } else { 0 };
        let version = match self.version {
            AcceptVersion::V1 { .. } => Version::V1,
            AcceptVersion::V2 { .. } => Version::V2,
        };
        let flags = first_contact | Paths::SmcD as u8;
        Header { kind, version, flags, length: self.encoded_len() }.encode(writer)?;
        writer.be64(self.gid.gid())?;
        writer.be64(self.token.0)?;
        writer.u8(0)?;
        writer.u8(self.size.class() << 4)?;
        writer.zeros::<2>()?;
        writer.be32(self.link_id)?;
        match self.version {
            AcceptVersion::V1 { .. } => writer.zeros::<12>()?,
            AcceptVersion::V2 { chid, eid, first_contact } => {
                writer.be16(chid.0)?;
                writer.bytes(&eid.0)?;
                writer.be64(self.gid.gid_ext())?;
                if let Some(extension) = first_contact {
                    extension.encode(writer)?;
                }
            }
        }
        writer.bytes(&eyecatcher(kind))
    }
}

impl FirstContact {
    fn encoded_len(&self) -> usize {
        if self.release == 0 { EXTENSION_LEN } else { EXTENSION_LEN + EXTENSION_LEN_V2X }
    }

    fn decode(fields: Fields<'_>, at: usize) -> Result<FirstContact, ClcError> {
        let system = fields.u8(at + 1)?;
        let release = system & 0x0f;
        let v2x = if release == 0 {
            FirstContactV2x::default()
        } else {
            FirstContactV2x {
                max_conns: fields.u8(at + 36)?,
                max_links: fields.u8(at + 37)?,
                feature_mask: fields.be16(at + 38)?,
                vendor: fields.be32(at + 40)?,
            }
        };
        Ok(FirstContact {
            v2_direct: fields.u8(at)? & 0x80 != 0,
            os: system >> 4,
            release,
            hostname: fields.bytes(at + 4)?,
            v2x,
        })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        if self.os > 0x0f {
            return Err(ClcError::Value("operating system"));
        }
        if self.release > 0x0f {
            return Err(ClcError::Value("release"));
        }
        writer.u8(if self.v2_direct { 0x80 } else { 0 })?;
        writer.u8(self.os << 4 | self.release)?;
        writer.zeros::<2>()?;
        writer.bytes(&self.hostname)?;
        if self.release > 0 {
            writer.u8(self.v2x.max_conns)?;
            writer.u8(self.v2x.max_links)?;
            writer.be16(self.v2x.feature_mask)?;
            writer.be32(self.v2x.vendor)?;
            writer.zeros::<8>()?;
        }
        Ok(())
    }
}
