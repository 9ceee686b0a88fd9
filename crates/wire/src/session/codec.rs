//! The messages as bytes: a type (16 bits), then the fields in order. What follows them is a later version's, and passed over.

use super::{ClcBytes, ConnId, Expected, FromBroker, MAX_UEIDS, Role, SessionError, ToBroker, Welcome};

/// Messages of the control protocol are numbered from here on, so that no message of any version of the lanes' gets their number.
/// (`Hello`, `Welcome`, `Refused`, `Revoke` and `Query` have the numbers that they had before there were two protocols.)
const CONTROL_FROM: u16 = 0x100;
const LANES: u16 = CONTROL_FROM;

struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let end = self.at + bytes.len();
        self.to.get_mut(self.at..end).ok_or(SessionError::Room)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }
    fn u8(&mut self, v: u8) -> Result<(), SessionError> {
        self.put(&[v])
    }
    fn u16(&mut self, v: u16) -> Result<(), SessionError> {
        self.put(&v.to_le_bytes())
    }
    fn u32(&mut self, v: u32) -> Result<(), SessionError> {
        self.put(&v.to_le_bytes())
    }
    fn u64(&mut self, v: u64) -> Result<(), SessionError> {
        self.put(&v.to_le_bytes())
    }
    /// Both versions in one word. Before there was a control protocol, it was the lanes' alone.
    fn versions(&mut self, control: u16, lanes: u32) -> Result<(), SessionError> {
        self.u32(u32::from(control) << 16 | lanes & 0xffff)
    }
    fn role(&mut self, role: Role) -> Result<(), SessionError> {
        self.u8(u8::from(role == Role::Server))
    }
    fn clc(&mut self, clc: &ClcBytes) -> Result<(), SessionError> {
        self.u16(clc.len)?;
        self.put(clc.as_slice())
    }
}

struct Reader<'a> {
    from: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SessionError> {
        let (head, rest) = self.from.split_first_chunk::<N>().ok_or(SessionError::Length)?;
        self.from = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, SessionError> {
        Ok(self.take::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, SessionError> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    fn u32(&mut self) -> Result<u32, SessionError> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, SessionError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    fn conn(&mut self) -> Result<ConnId, SessionError> {
        Ok(ConnId(self.u64()?))
    }
    fn flag(&mut self) -> Result<bool, SessionError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(SessionError::Unknown),
        }
    }
    fn role(&mut self) -> Result<Role, SessionError> {
        Ok(if self.flag()? { Role::Server } else { Role::Client })
    }
    fn clc(&mut self) -> Result<ClcBytes, SessionError> {
        let len = usize::from(self.u16()?);
        let (head, rest) = self.from.split_at_checked(len).ok_or(SessionError::Length)?;
        self.from = rest;
        ClcBytes::new(head)
    }
    /// (control, lanes)
    fn versions(&mut self) -> Result<(u16, u32), SessionError> {
        let both = self.u32()?;
        Ok(((both >> 16) as u16, both & 0xffff))
    }
}

impl ToBroker {
    /// Writes the message to the start of `to` and returns its length, at most [`MAX`](super::MAX).
    pub fn encode(&self, to: &mut [u8]) -> Result<usize, SessionError> {
        let mut w = Writer { to, at: 0 };
        match *self {
            ToBroker::Hello { control, version, doorbells, comm } => {
                w.u16(1)?;
                w.versions(control, version)?;
                w.u8(doorbells)?;
                w.put(&comm)?;
            }
            ToBroker::Nominate { conn, role, tx, rx, answer } => {
                w.u16(2)?;
                w.u64(conn.0)?;
                w.role(role)?;
                w.u64(tx)?;
                w.u64(rx)?;
                w.u8(u8::from(answer))?;
            }
            ToBroker::Withdraw { conn } => {
                w.u16(3)?;
                w.u64(conn.0)?;
            }
            ToBroker::Clc { conn, ref clc } => {
                w.u16(4)?;
                w.u64(conn.0)?;
                w.clc(clc)?;
            }
            ToBroker::Register { conn, class } => {
                w.u16(5)?;
                w.u64(conn.0)?;
                w.u8(class)?;
            }
            ToBroker::Attach { conn, token } => {
                w.u16(6)?;
                w.u64(conn.0)?;
                w.u64(token)?;
            }
            ToBroker::Unregister { token } => {
                w.u16(7)?;
                w.u64(token)?;
            }
            ToBroker::Detach { token, gone } => {
                w.u16(8)?;
                w.u64(token)?;
                w.u8(u8::from(gone))?;
            }
            ToBroker::Query { what, ref arg } => {
                w.u16(9)?;
                w.u16(what)?;
                w.clc(arg)?;
            }
            ToBroker::Expect { conn, role, ip, port } => {
                w.u16(10)?;
                w.u64(conn.0)?;
                w.role(role)?;
                w.put(&ip)?;
                w.u16(port)?;
            }
            ToBroker::Lanes { lanes, plain } => {
                w.u16(LANES)?;
                w.u32(lanes)?;
                w.u32(plain)?;
            }
            ToBroker::Ring { ring, class } => {
                w.u16(11)?;
                w.u32(ring)?;
                w.u8(class)?;
            }
            ToBroker::Park { token } => {
                w.u16(12)?;
                w.u64(token)?;
            }
            ToBroker::Reuse { conn, token } => {
                w.u16(13)?;
                w.u64(conn.0)?;
                w.u64(token)?;
            }
        }
        Ok(w.at)
    }

    /// Parses one datagram.
    pub fn decode(from: &[u8]) -> Result<Self, SessionError> {
        let mut r = Reader { from };
        let message = match r.u16()? {
            1 => {
                let (control, version) = r.versions()?;
                ToBroker::Hello { control, version, doorbells: r.u8()?, comm: r.take()? }
            }
            2 => ToBroker::Nominate {
                conn: r.conn()?,
                role: r.role()?,
                tx: r.u64()?,
                rx: r.u64()?,
                answer: r.flag()?,
            },
            3 => ToBroker::Withdraw { conn: r.conn()? },
            4 => ToBroker::Clc { conn: r.conn()?, clc: r.clc()? },
            5 => ToBroker::Register { conn: r.conn()?, class: r.u8()? },
            6 => ToBroker::Attach { conn: r.conn()?, token: r.u64()? },
            7 => ToBroker::Unregister { token: r.u64()? },
            8 => ToBroker::Detach { token: r.u64()?, gone: r.flag()? },
            9 => ToBroker::Query { what: r.u16()?, arg: r.clc()? },
            10 => ToBroker::Expect { conn: r.conn()?, role: r.role()?, ip: r.take()?, port: r.u16()? },
            LANES => ToBroker::Lanes { lanes: r.u32()?, plain: r.u32()? },
            11 => ToBroker::Ring { ring: r.u32()?, class: r.u8()? },
            12 => ToBroker::Park { token: r.u64()? },
            13 => ToBroker::Reuse { conn: r.conn()?, token: r.u64()? },
            _ => return Err(SessionError::Type),
        };
        Ok(message)
    }
}

impl FromBroker {
    /// Writes the message to the start of `to` and returns its length, at most [`MAX`](super::MAX).
    pub fn encode(&self, to: &mut [u8]) -> Result<usize, SessionError> {
        let mut w = Writer { to, at: 0 };
        match *self {
            FromBroker::Welcome(ref v) => {
                w.u16(1)?;
                w.versions(v.control, v.version)?;
                w.put(&v.peer_id)?;
                w.put(&v.gid.to_le_bytes())?;
                w.u16(v.chid)?;
                w.u8(u8::from(v.seid_enabled))?;
                w.put(&v.seid)?;
                w.u8(v.ueid_count)?;
                for ueid in &v.ueids {
                    w.put(ueid)?;
                }
            }
            FromBroker::Matched { conn, link, slot, side, first_contact, doorbells, peer } => {
                w.u16(2)?;
                w.u64(conn.0)?;
                w.u32(link)?;
                w.u16(slot)?;
                w.u8(side)?;
                w.u8(u8::from(first_contact))?;
                w.u8(doorbells)?;
                w.u32(peer)?;
            }
            FromBroker::Again { conn } => {
                w.u16(3)?;
                w.u64(conn.0)?;
            }
            FromBroker::Refused { conn, reason } => {
                w.u16(4)?;
                w.u64(conn.0)?;
                w.u32(reason)?;
            }
            FromBroker::Gone { conn } => {
                w.u16(5)?;
                w.u64(conn.0)?;
            }
            FromBroker::Clc { conn, ref clc } => {
                w.u16(6)?;
                w.u64(conn.0)?;
                w.clc(clc)?;
            }
            FromBroker::Registered { conn, token, reason } => {
                w.u16(7)?;
                w.u64(conn.0)?;
                w.u64(token)?;
                w.u32(reason)?;
            }
            FromBroker::Attached { conn, token, class, reason } => {
                w.u16(8)?;
                w.u64(conn.0)?;
                w.u64(token)?;
                w.u8(class)?;
                w.u32(reason)?;
            }
            FromBroker::Revoke { conn } => {
                w.u16(9)?;
                w.u64(conn.0)?;
            }
            FromBroker::LinkGone { link } => {
                w.u16(10)?;
                w.u32(link)?;
            }
            FromBroker::Waiting { conn, expected } => {
                w.u16(11)?;
                w.u64(conn.0)?;
                w.u8(match expected {
                    Expected::Nobody => 0,
                    Expected::Own => 1,
                    Expected::Other => 2,
                })?;
            }
            FromBroker::Tap { tap, class, root } => {
                w.u16(12)?;
                w.u64(tap)?;
                w.u8(class)?;
                w.u8(u8::from(root))?;
            }
            FromBroker::Untap { tap } => {
                w.u16(13)?;
                w.u64(tap)?;
            }
            FromBroker::Tapped { ring, pid, uid, comm } => {
                w.u16(14)?;
                w.u32(ring)?;
                w.u32(pid)?;
                w.u32(uid)?;
                w.put(&comm)?;
            }
            FromBroker::TapOver { ring } => {
                w.u16(15)?;
                w.u32(ring)?;
            }
            FromBroker::Parked { token } => {
                w.u16(16)?;
                w.u64(token)?;
            }
            FromBroker::Dropped { token } => {
                w.u16(17)?;
                w.u64(token)?;
            }
        }
        Ok(w.at)
    }

    /// Parses one datagram.
    pub fn decode(from: &[u8]) -> Result<Self, SessionError> {
        let mut r = Reader { from };
        let message = match r.u16()? {
            1 => {
                let (control, version) = r.versions()?;
                let peer_id = r.take()?;
                let gid = u128::from_le_bytes(r.take()?);
                let chid = r.u16()?;
                let seid_enabled = r.flag()?;
                let seid = r.take()?;
                let ueid_count = r.u8()?;
                if usize::from(ueid_count) > MAX_UEIDS {
                    return Err(SessionError::Unknown);
                }
                let mut ueids = [[0; 32]; MAX_UEIDS];
                for ueid in &mut ueids {
                    *ueid = r.take()?;
                }
                FromBroker::Welcome(Welcome {
                    control,
                    version,
                    peer_id,
                    gid,
                    chid,
                    seid_enabled,
                    seid,
                    ueid_count,
                    ueids,
                })
            }
            2 => FromBroker::Matched {
                conn: r.conn()?,
                link: r.u32()?,
                slot: r.u16()?,
                side: u8::from(r.flag()?),
                first_contact: r.flag()?,
                doorbells: r.u8()?,
                peer: r.u32()?,
            },
            3 => FromBroker::Again { conn: r.conn()? },
            4 => FromBroker::Refused { conn: r.conn()?, reason: r.u32()? },
            5 => FromBroker::Gone { conn: r.conn()? },
            6 => FromBroker::Clc { conn: r.conn()?, clc: r.clc()? },
            7 => FromBroker::Registered { conn: r.conn()?, token: r.u64()?, reason: r.u32()? },
            8 => FromBroker::Attached { conn: r.conn()?, token: r.u64()?, class: r.u8()?, reason: r.u32()? },
            9 => FromBroker::Revoke { conn: r.conn()? },
            10 => FromBroker::LinkGone { link: r.u32()? },
            11 => FromBroker::Waiting {
                conn: r.conn()?,
                expected: match r.u8()? {
                    0 => Expected::Nobody,
                    1 => Expected::Own,
                    2 => Expected::Other,
                    _ => return Err(SessionError::Unknown),
                },
            },
            12 => FromBroker::Tap { tap: r.u64()?, class: r.u8()?, root: r.flag()? },
            13 => FromBroker::Untap { tap: r.u64()? },
            14 => FromBroker::Tapped { ring: r.u32()?, pid: r.u32()?, uid: r.u32()?, comm: r.take()? },
            15 => FromBroker::TapOver { ring: r.u32()? },
            16 => FromBroker::Parked { token: r.u64()? },
            17 => FromBroker::Dropped { token: r.u64()? },
            _ => return Err(SessionError::Type),
        };
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{CONTROL, LAST_WITHOUT_CONTROL, MAX, VERSION};

    fn hello(control: u16, version: u32) -> ToBroker {
        ToBroker::Hello { control, version, doorbells: 1, comm: [7; 16] }
    }

    #[test]
    fn a_later_versions_message_is_longer_or_of_another_type() {
        let mut bytes = [0; MAX];
        let len = hello(CONTROL, VERSION).encode(&mut bytes).unwrap();
        assert_eq!(ToBroker::decode(&bytes[..len + 9]), Ok(hello(CONTROL, VERSION)));
        assert_eq!(ToBroker::decode(&bytes[..len - 1]), Err(SessionError::Length));
        let len = FromBroker::Revoke { conn: ConnId(5) }.encode(&mut bytes).unwrap();
        assert_eq!(FromBroker::decode(&bytes[..len + 1]), Ok(FromBroker::Revoke { conn: ConnId(5) }));
        for unknown in [0, CONTROL_FROM - 1, CONTROL_FROM + 1, u16::MAX] {
            bytes[..2].copy_from_slice(&unknown.to_le_bytes());
            assert_eq!(ToBroker::decode(&bytes), Err(SessionError::Type));
            assert_eq!(FromBroker::decode(&bytes), Err(SessionError::Type));
        }
    }

    #[test]
    fn the_word_of_both_versions_was_the_lanes_alone() {
        let mut bytes = [0; MAX];
        let len = hello(0, LAST_WITHOUT_CONTROL).encode(&mut bytes).unwrap();
        assert_eq!(bytes[2..6], LAST_WITHOUT_CONTROL.to_le_bytes());
        assert_eq!(ToBroker::decode(&bytes[..len]), Ok(hello(0, LAST_WITHOUT_CONTROL)));
        let len = hello(2, 11).encode(&mut bytes).unwrap();
        assert_eq!(ToBroker::decode(&bytes[..len]), Ok(hello(2, 11)));
        // What a library or broker without a control protocol compares is another version than its own.
        assert_ne!(bytes[2..6], 11u32.to_le_bytes());
    }
}
