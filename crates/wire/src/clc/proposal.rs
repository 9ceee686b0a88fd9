//! Proposal: the client's offer of devices and names of systems.
//!
//! ```text
//! base           40  header, id_for_peer[8] ib_gid[16] mac[6] iparea_offset[2]
//! SMC-D area     40  gid[8] chid[2] v2_ext_offset[2] vendor[8] reserved[20]
//! prefix          8  subnet[4] length[1] reserved[2] ipv6_count[1], only if version 1 is offered
//! IPv6 prefix    17  each: prefix[16] length[1]
//! v2 extension   40  eid_count[1] gid_count[1] reserved[1] release<<4|seid[1] reserved[2]
//!                    smcd_v2_ext_offset[2] roce[16] max_conns[1] max_links[1] feature_mask[2] reserved[12]
//! UEID           32  each
//! SMC-Dv2        48  seid[32] reserved[16]
//! GID-CHID       10  each: gid[8] chid[2]
//! trailer         4
//! ```
//!
//! Offsets count from the end of the field that holds them.

use super::bytes::{Fields, Writer};
use super::{
    ClcError, HEADER_LEN, Header, Kind, List, MAX_EIDS, MAX_GIDS, MAX_IPV6_PREFIXES, TRAILER_LEN, Version,
    eyecatcher,
};
use crate::{Chid, Eid, Gid, PeerId, Seid};

const BASE_LEN: usize = 40;
const SMCD_LEN: usize = 40;
const PREFIX_LEN: usize = 8;
const IPV6_PREFIX_LEN: usize = 17;
const V2_LEN: usize = 40;
const EID_LEN: usize = 32;
const SMCD_V2_LEN: usize = 48;
const GID_CHID_LEN: usize = 10;

/// Where an offset field ends, counted from the start of its part: what the offset is added to.
const V2_OFFSET_BASE: usize = 12;
const SMCD_V2_OFFSET_BASE: usize = 8;

const FLAG_SEID: u8 = 0x01;

/// The kinds of SMC that a proposal offers of one version.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Paths {
    /// RDMA only.
    SmcR = 0,
    /// ISM only.
    SmcD = 1,
    /// Neither.
    None = 2,
    /// Both.
    Both = 3,
}

impl Paths {
    /// Whether SMC-D is among them.
    pub const fn has_smcd(self) -> bool {
        matches!(self, Paths::SmcD | Paths::Both)
    }

    const fn from_bits(bits: u8) -> Paths {
        match bits & 3 {
            0 => Paths::SmcR,
            1 => Paths::SmcD,
            2 => Paths::None,
            _ => Paths::Both,
        }
    }
}

/// The client's offer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// Version 2 also where both are offered.
    pub version: Version,
    /// What version 1 could use.
    pub v1: Paths,
    /// What version 2 could use.
    pub v2: Paths,
    /// The client.
    pub peer_id: PeerId,
    /// The client's RoCE device (SMC-R, version 1).
    pub ib_gid: [u8; 16],
    /// The RoCE device's MAC address (SMC-R, version 1).
    pub mac: [u8; 6],
    /// The client's IP subnet; present if and only if `v1` offers something.
    pub prefix: Option<Prefix>,
    /// What SMC-D and version 2 need; left out only by hosts that know neither.
    pub smcd: Option<SmcdArea>,
}

/// The client's IP subnet, which version 1 requires to be the server's too.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Of IPv4; zero for IPv6.
    pub subnet: [u8; 4],
    /// Bits of `subnet` that count.
    pub length: u8,
    /// Of IPv6.
    pub ipv6: List<Ipv6Prefix, MAX_IPV6_PREFIXES>,
}

/// An IPv6 subnet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ipv6Prefix {
    /// The address.
    pub prefix: [u8; 16],
    /// Bits of it that count.
    pub length: u8,
}

/// SMC-D's part of a proposal.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SmcdArea {
    /// GID and CHID of the device for version 1, else zero.
    pub ism: GidChid,
    /// Experimental options of a vendor: OUI, then five bytes.
    pub vendor: [u8; 8],
    /// What version 2 adds.
    pub v2: Option<V2Extension>,
}

/// Version 2's part of a proposal.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct V2Extension {
    /// SMC release, 0-15: 2.0 or 2.1.
    pub release: u8,
    /// The SEID takes part in finding the common EID.
    pub seid_enabled: bool,
    /// The client's RoCE device (SMC-R).
    pub roce: [u8; 16],
    /// Most connections of a link group (SMC-R).
    pub max_conns: u8,
    /// Most links of a link group (SMC-R).
    pub max_links: u8,
    /// Features that the client knows; see [`FEATURE_EMULATED_ISM`](super::FEATURE_EMULATED_ISM).
    pub feature_mask: u16,
    /// The client's UEIDs, the preferred one first.
    pub ueids: List<Eid, MAX_EIDS>,
    /// What SMC-D adds.
    pub smcd: Option<SmcdV2Extension>,
}

/// SMC-D's part of version 2's part.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SmcdV2Extension {
    /// The client's SEID.
    pub seid: Seid,
    /// The client's devices, the preferred one first, as they travel; see [`SmcdV2Extension::devices`].
    pub gids: List<GidChid, MAX_GIDS>,
}

/// One entry of the device list: half an emulated device, or a whole other one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct GidChid {
    /// `gid`, or in an emulated device's second entry `gid_ext`.
    pub gid: u64,
    /// The device's CHID.
    pub chid: Chid,
}

impl SmcdV2Extension {
    /// Adds a device: two entries if it is an emulated one. Returns false, and adds nothing, when
    /// there is no room for all of it.
    #[must_use]
    pub fn offer(&mut self, gid: Gid, chid: Chid) -> bool {
        let entries = if chid.is_emulated() { 2 } else { 1 };
        self.gids.room() >= entries
            && self.gids.push(GidChid { gid: gid.gid(), chid })
            && (entries == 1 || self.gids.push(GidChid { gid: gid.gid_ext(), chid }))
    }

    /// The devices offered, in order. The half of an emulated device that has no other half with the
    /// same CHID right behind it is passed over.
    pub fn devices(&self) -> Devices<'_> {
        Devices { gids: &self.gids, next: 0 }
    }
}

/// Iterator over the devices of a proposal.
pub struct Devices<'a> {
    gids: &'a List<GidChid, MAX_GIDS>,
    next: usize,
}

impl Iterator for Devices<'_> {
    type Item = (Gid, Chid);

    fn next(&mut self) -> Option<(Gid, Chid)> {
        loop {
            let GidChid { gid, chid } = self.gids.at(self.next)?;
            self.next += 1;
            if !chid.is_emulated() {
                return Some((Gid::new(gid, 0), chid));
            }
            match self.gids.at(self.next) {
                Some(second) if second.chid == chid => {
                    self.next += 1;
                    return Some((Gid::new(gid, second.gid), chid));
                }
                _ => {}
            }
        }
    }
}

impl Proposal {
    pub(super) fn encoded_len(&self) -> usize {
        let prefix = self.prefix.map_or(0, |prefix| prefix.encoded_len());
        let smcd = self.smcd.map_or(0, |area| SMCD_LEN + area.v2.map_or(0, |v2| v2.encoded_len()));
        BASE_LEN + prefix + smcd + TRAILER_LEN
    }

    pub(super) fn decode(header: &Header, fields: Fields<'_>) -> Result<Proposal, ClcError> {
        let (v1, v2) = (Paths::from_bits(header.flags), Paths::from_bits(header.flags >> 2));
        let iparea_offset = usize::from(fields.be16(38)?);
        // Without version 1 there is no IP area whose offset could tell whether the SMC-D area is there.
        let smcd = if v1 == Paths::None || iparea_offset >= SMCD_LEN {
            Some(SmcdArea::decode(header.version, v2, fields)?)
        } else if v1.has_smcd() {
            return Err(ClcError::Value("offset of the IP area"));
        } else {
            None
        };
        let prefix =
            if v1 == Paths::None { None } else { Some(Prefix::decode(fields, BASE_LEN + iparea_offset)?) };
        Ok(Proposal {
            version: header.version,
            v1,
            v2,
            peer_id: PeerId(fields.bytes(HEADER_LEN)?),
            ib_gid: fields.bytes(16)?,
            mac: fields.bytes(32)?,
            prefix,
            smcd,
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        self.check()?;
        let flags = (self.v2 as u8) << 2 | self.v1 as u8;
        Header { kind: Kind::Proposal, version: self.version, flags, length: self.encoded_len() }
            .encode(writer)?;
        writer.bytes(&self.peer_id.0)?;
        writer.bytes(&self.ib_gid)?;
        writer.bytes(&self.mac)?;
        let smcd_len = if self.smcd.is_some() { SMCD_LEN } else { 0 };
        writer.be16(if self.prefix.is_some() { smcd_len as u16 } else { 0 })?;
        if let Some(area) = &self.smcd {
            area.encode(self.prefix.map_or(0, |prefix| prefix.encoded_len()), writer)?;
        }
        if let Some(prefix) = &self.prefix {
            prefix.encode(writer)?;
        }
        if let Some(SmcdArea { v2: Some(v2), .. }) = &self.smcd {
            v2.encode(writer)?;
        }
        writer.bytes(&eyecatcher(Kind::Proposal))
    }

    /// Refuses what could be written but would be read otherwise.
    fn check(&self) -> Result<(), ClcError> {
        if self.prefix.is_some() == (self.v1 == Paths::None) {
            return Err(ClcError::Value("IP prefix without version 1, or version 1 without one"));
        }
        let Some(area) = &self.smcd else {
            return if self.v1 == Paths::SmcR { Ok(()) } else { Err(ClcError::Value("missing SMC-D area")) };
        };
        let Some(v2) = &area.v2 else { return Ok(()) };
        if self.version == Version::V1 {
            return Err(ClcError::Value("version 2 extension in version 1"));
        }
        if v2.release > 0x0f {
            return Err(ClcError::Value("release"));
        }
        if v2.smcd.is_some() && !self.v2.has_smcd() {
            return Err(ClcError::Value("SMC-Dv2 extension without SMC-Dv2"));
        }
        Ok(())
    }
}

impl SmcdArea {
    fn decode(version: Version, paths: Paths, fields: Fields<'_>) -> Result<SmcdArea, ClcError> {
        let v2 = match usize::from(fields.be16(BASE_LEN + 10)?) {
            offset if offset > 0 && version == Version::V2 => {
                Some(V2Extension::decode(paths, fields, BASE_LEN + V2_OFFSET_BASE + offset)?)
            }
            _ => None,
        };
        fields.bytes::<SMCD_LEN>(BASE_LEN)?;
        Ok(SmcdArea {
            ism: GidChid { gid: fields.be64(BASE_LEN)?, chid: Chid(fields.be16(BASE_LEN + 8)?) },
            vendor: fields.bytes(BASE_LEN + 12)?,
            v2,
        })
    }

    /// `prefix_len` bytes stand between this area and the version 2 extension.
    fn encode(&self, prefix_len: usize, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        writer.be64(self.ism.gid)?;
        writer.be16(self.ism.chid.0)?;
        let offset = if self.v2.is_some() { SMCD_LEN - V2_OFFSET_BASE + prefix_len } else { 0 };
        writer.be16(offset as u16)?;
        writer.bytes(&self.vendor)?;
        writer.zeros::<20>()
    }
}

impl Prefix {
    fn encoded_len(&self) -> usize {
        PREFIX_LEN + self.ipv6.len() * IPV6_PREFIX_LEN
    }

    fn decode(fields: Fields<'_>, at: usize) -> Result<Prefix, ClcError> {
        let ipv6 = read_list("IPv6 prefixes", fields.u8(at + 7)?, |i| {
            let at = at + PREFIX_LEN + i * IPV6_PREFIX_LEN;
            Ok(Ipv6Prefix { prefix: fields.bytes(at)?, length: fields.u8(at + 16)? })
        })?;
        Ok(Prefix { subnet: fields.bytes(at)?, length: fields.u8(at + 4)?, ipv6 })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        writer.bytes(&self.subnet)?;
        writer.u8(self.length)?;
        writer.zeros::<2>()?;
        writer.u8(self.ipv6.len() as u8)?;
        for Ipv6Prefix { prefix, length } in self.ipv6.iter() {
            writer.bytes(&prefix)?;
            writer.u8(length)?;
        }
        Ok(())
    }
}

impl V2Extension {
    fn encoded_len(&self) -> usize {
        let smcd = self.smcd.map_or(0, |smcd| SMCD_V2_LEN + smcd.gids.len() * GID_CHID_LEN);
        V2_LEN + self.ueids.len() * EID_LEN + smcd
    }

    fn decode(paths: Paths, fields: Fields<'_>, at: usize) -> Result<V2Extension, ClcError> {
        let flags = fields.u8(at + 3)?;
        let ueids =
            read_list("UEIDs", fields.u8(at)?, |i| Ok(Eid(fields.bytes(at + V2_LEN + i * EID_LEN)?)))?;
        let smcd = match usize::from(fields.be16(at + 6)?) {
            offset if offset > 0 && paths.has_smcd() => {
                Some(SmcdV2Extension::decode(fields.u8(at + 1)?, fields, at + SMCD_V2_OFFSET_BASE + offset)?)
            }
            _ => None,
        };
        fields.bytes::<V2_LEN>(at)?;
        Ok(V2Extension {
            release: flags >> 4,
            seid_enabled: flags & FLAG_SEID != 0,
            roce: fields.bytes(at + 8)?,
            max_conns: fields.u8(at + 24)?,
            max_links: fields.u8(at + 25)?,
            feature_mask: fields.be16(at + 26)?,
            ueids,
            smcd,
        })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        let eids_len = self.ueids.len() * EID_LEN;
        let (gid_count, offset) = match &self.smcd {
            Some(smcd) => (smcd.gids.len(), V2_LEN - SMCD_V2_OFFSET_BASE + eids_len),
            None => (0, 0),
        };
        writer.u8(self.ueids.len() as u8)?;
        writer.u8(gid_count as u8)?;
        writer.zeros::<1>()?;
        writer.u8(self.release << 4 | if self.seid_enabled { FLAG_SEID } else { 0 })?;
        writer.zeros::<2>()?;
        writer.be16(offset as u16)?;
        writer.bytes(&self.roce)?;
        writer.u8(self.max_conns)?;
        writer.u8(self.max_links)?;
        writer.be16(self.feature_mask)?;
        writer.zeros::<12>()?;
        for eid in self.ueids.iter() {
            writer.bytes(&eid.0)?;
        }
        if let Some(smcd) = &self.smcd {
            smcd.encode(writer)?;
        }
        Ok(())
    }
}

impl SmcdV2Extension {
    fn decode(count: u8, fields: Fields<'_>, at: usize) -> Result<SmcdV2Extension, ClcError> {
        let gids = read_list("GID-CHID entries", count, |i| {
            let at = at + SMCD_V2_LEN + i * GID_CHID_LEN;
            Ok(GidChid { gid: fields.be64(at)?, chid: Chid(fields.be16(at + 8)?) })
        })?;
        fields.bytes::<SMCD_V2_LEN>(at)?;
        Ok(SmcdV2Extension { seid: Seid(Eid(fields.bytes(at)?)), gids })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), ClcError> {
        writer.bytes(&self.seid.0.0)?;
        writer.zeros::<16>()?;
        for GidChid { gid, chid } in self.gids.iter() {
            writer.be64(gid)?;
            writer.be16(chid.0)?;
        }
        Ok(())
    }
}

/// Reads `count` items. Errors: more than the list holds, or one that cannot be read.
fn read_list<T: Copy, const N: usize>(
    name: &'static str,
    count: u8,
    item: impl Fn(usize) -> Result<T, ClcError>,
) -> Result<List<T, N>, ClcError> {
    let count = usize::from(count);
    let mut list = List::new();
    for i in 0..count {
        if count > N || !list.push(item(i)?) {
            return Err(ClcError::Count { list: name, count, max: N });
        }
    }
    Ok(list)
}
