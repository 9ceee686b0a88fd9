//! The names that the handshake exchanges: of devices, systems and memory.

use core::fmt;

/// GID: names an ISM device. The upper 64 bits are SMC's `gid`, the lower 64 its `gid_ext`, which is
/// zero for a hardware ISM device; loopback-ism's GID is a random UUID.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Gid(pub u128);

impl Gid {
    /// The GID made of its two words.
    pub const fn new(gid: u64, gid_ext: u64) -> Self {
        Gid(((gid as u128) << 64) | gid_ext as u128)
    }

    /// The first word, all there is of a hardware device's GID.
    pub const fn gid(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The second word, which an emulated device adds.
    pub const fn gid_ext(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{:016x}", self.gid(), self.gid_ext())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// CHID: names the fabric that an ISM device is on. Devices of different CHIDs never reach one another.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Chid(pub u16);

impl Chid {
    /// The CHID of loopback-ism.
    pub const LOOPBACK: Chid = Chid(0xFFFF);

    /// Whether the device is an emulated one (0xFF00-0xFFFF), whose GID has 128 bits.
    pub const fn is_emulated(self) -> bool {
        self.0 >= 0xFF00
    }
}

impl fmt::Display for Chid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

impl fmt::Debug for Chid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chid({self})")
    }
}

/// EID: names a group of systems that may talk SMC to one another. A UEID, or the SEID of the host,
/// as the 32 bytes that travel.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Eid(pub [u8; 32]);

/// Why a text is not a UEID.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum UeidError {
    /// Empty, or longer than 32 characters.
    Length(usize),
    /// The first character is not a letter or a digit.
    First(char),
    /// A character outside `[A-Z0-9.-]`.
    Character(char),
}

impl fmt::Display for UeidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            UeidError::Length(n) => write!(f, "a UEID has 1 to 32 characters, not {n}"),
            UeidError::First(c) => {
                write!(f, "a UEID begins with a letter or a digit, not with {c:?}")
            }
            UeidError::Character(c) => {
                write!(f, "a UEID holds only A-Z, 0-9, '.' and '-', not {c:?}")
            }
        }
    }
}

impl core::error::Error for UeidError {}

impl Eid {
    /// The UEID that a person wrote: 1 to 32 of `[A-Z0-9.-]`, the first a letter or a digit.
    /// Lower-case letters are taken for upper-case ones, as the kernel does.
    pub fn ueid(text: &str) -> Result<Eid, UeidError> {
        let length = text.chars().count();
        let first = match text.chars().next() {
            Some(first) if length <= 32 => first,
            _ => return Err(UeidError::Length(length)),
        };
        if !first.is_ascii_alphanumeric() {
            return Err(UeidError::First(first));
        }
        let mut bytes = [b' '; 32];
        for (to, c) in bytes.iter_mut().zip(text.chars()) {
            *to = match c {
                'A'..='Z' | 'a'..='z' | '0'..='9' | '.' | '-' => c.to_ascii_uppercase() as u8,
                _ => return Err(UeidError::Character(c)),
            };
        }
        Ok(Eid(bytes))
    }

    /// Whether the 32 bytes have a UEID's form; what a peer sends need not.
    pub fn is_ueid(&self) -> bool {
        match core::str::from_utf8(&self.0) {
            Ok(text) => Eid::ueid(text.trim_end_matches(' ')) == Ok(*self),
            Err(_) => false,
        }
    }

    /// The EID without its padding; empty if it is not text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or("").trim_end_matches([' ', '\0'])
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({:?})", self.as_str())
    }
}

/// SEID: the EID of the host itself, which its firmware gives. All zero where there is none, as on
/// everything but s390.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seid(pub Eid);

impl Seid {
    /// No SEID.
    pub const NONE: Seid = Seid(Eid([0; 32]));
}

/// Names a DMB, unique among those of its device.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct DmbToken(pub u64);

impl fmt::Display for DmbToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for DmbToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmbToken({self})")
    }
}

/// `id_for_peer`: an instance number and a MAC address that name this host to its peers. All zero
/// on a host that has only emulated ISM devices.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerId(pub [u8; 8]);

/// Size class n of a DMB: 16 KiB << n. The wire has four bits for it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DmbSize(u8);

impl DmbSize {
    /// 16 KiB.
    pub const MIN: DmbSize = DmbSize(0);
    /// 1 MiB, the largest of the kernel's SMC-D.
    pub const KERNEL_MAX: DmbSize = DmbSize(6);
    /// 512 MiB, the largest that the wire can say.
    pub const MAX: DmbSize = DmbSize(15);

    /// The class with this number, or `None` above [`DmbSize::MAX`].
    pub const fn from_class(class: u8) -> Option<DmbSize> {
        if class <= DmbSize::MAX.0 { Some(DmbSize(class)) } else { None }
    }

    /// The smallest class that holds so many bytes, or `None` if none does.
    pub fn holding(bytes: usize) -> Option<DmbSize> {
        (0..=DmbSize::MAX.0).map(DmbSize).find(|size| size.bytes() >= bytes)
    }

    /// The class's number.
    pub const fn class(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        (16 << 10) << self.0
    }

    /// One class down, as after a refused allocation; `None` at the smallest.
    pub const fn smaller(self) -> Option<DmbSize> {
        match self.0 {
            0 => None,
            n => Some(DmbSize(n - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_is_made_of_two_words() {
        let gid = Gid::new(0x5149d358ed6703cd, 0xb092ba55199c31ad);
        assert_eq!(gid.gid(), 0x5149d358ed6703cd);
        assert_eq!(gid.gid_ext(), 0xb092ba55199c31ad);
        assert_eq!(gid.to_string(), "5149d358ed6703cd:b092ba55199c31ad");
    }

    #[test]
    fn emulated_chids_begin_at_ff00() {
        assert!(Chid::LOOPBACK.is_emulated());
        assert!(Chid(0xFF00).is_emulated());
        assert!(!Chid(0xFEFF).is_emulated());
    }

    #[test]
    fn ueids_are_checked_and_padded() {
        let eid = Eid::ueid("second.eid-2").unwrap();
        assert_eq!(eid.as_str(), "SECOND.EID-2");
        assert_eq!(eid.0[12..], [b' '; 20]);
        assert!(eid.is_ueid());
        assert!(Eid::ueid(&"X".repeat(32)).unwrap().is_ueid());

        assert_eq!(Eid::ueid(""), Err(UeidError::Length(0)));
        assert_eq!(Eid::ueid(&"X".repeat(33)), Err(UeidError::Length(33)));
        assert_eq!(Eid::ueid(".X"), Err(UeidError::First('.')));
        assert_eq!(Eid::ueid("A B"), Err(UeidError::Character(' ')));
        assert_eq!(Eid::ueid("AÜ"), Err(UeidError::Character('Ü')));
    }

    #[test]
    fn foreign_bytes_are_not_a_ueid() {
        assert!(!Eid([0; 32]).is_ueid());
        assert!(!Eid([0xff; 32]).is_ueid());
        assert!(!Eid([b' '; 32]).is_ueid());
        let mut lower = Eid::ueid("ABC").unwrap();
        lower.0[0] = b'a';
        assert!(!lower.is_ueid());
    }

    #[test]
    fn dmb_sizes_double() {
        assert_eq!(DmbSize::MIN.bytes(), 16384);
        assert_eq!(DmbSize::KERNEL_MAX.bytes(), 1 << 20);
        assert_eq!(DmbSize::MAX.bytes(), 512 << 20);
        assert_eq!(DmbSize::holding(0), Some(DmbSize::MIN));
        assert_eq!(DmbSize::holding(16385), DmbSize::from_class(1));
        assert_eq!(DmbSize::holding((512 << 20) + 1), None);
        assert_eq!(DmbSize::from_class(16), None);
        assert_eq!(DmbSize::KERNEL_MAX.smaller(), DmbSize::from_class(5));
        assert_eq!(DmbSize::MIN.smaller(), None);
    }
}
