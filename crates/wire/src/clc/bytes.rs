//! Checked access to the bytes of a message: no index that can panic.

use super::ClcError;

/// Reads fields at offsets from the start of a message.
#[derive(Copy, Clone)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn bytes<const N: usize>(self, offset: usize) -> Result<[u8; N], ClcError> {
        self.0
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<N>())
            .copied()
            .ok_or(ClcError::Truncated { need: offset + N, have: self.0.len() })
    }

    pub(super) fn u8(self, offset: usize) -> Result<u8, ClcError> {
        Ok(u8::from_be_bytes(self.bytes(offset)?))
    }

    pub(super) fn be16(self, offset: usize) -> Result<u16, ClcError> {
        Ok(u16::from_be_bytes(self.bytes(offset)?))
    }

    pub(super) fn be32(self, offset: usize) -> Result<u32, ClcError> {
        Ok(u32::from_be_bytes(self.bytes(offset)?))
    }

    pub(super) fn be64(self, offset: usize) -> Result<u64, ClcError> {
        Ok(u64::from_be_bytes(self.bytes(offset)?))
    }
}

/// Writes fields one after the other.
pub(super) struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(to: &'a mut [u8]) -> Self {
        Writer { to, at: 0 }
    }

    /// How many bytes have been written.
    pub(super) fn written(&self) -> usize {
        self.at
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), ClcError> {
        let end = self.at + bytes.len();
        let have = self.to.len();
        self.to.get_mut(self.at..end).ok_or(ClcError::Room { need: end, have })?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    pub(super) fn zeros<const N: usize>(&mut self) -> Result<(), ClcError> {
        self.bytes(&[0; N])
    }

    pub(super) fn u8(&mut self, value: u8) -> Result<(), ClcError> {
        self.bytes(&[value])
    }

    pub(super) fn be16(&mut self, value: u16) -> Result<(), ClcError> {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn be32(&mut self, value: u32) -> Result<(), ClcError> {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn be64(&mut self, value: u64) -> Result<(), ClcError> {
        self.bytes(&value.to_be_bytes())
    }
}
