//! A short text without memory of its own.

use core::ffi::CStr;
use core::fmt::{Arguments, Write};

/// Up to 63 bytes; what is more is cut off.
pub struct Text {
    // The last one stays 0.
    bytes: [u8; 64],
    len: usize,
}

impl Text {
    /// `format_args!`, written down.
    pub fn new(text: Arguments<'_>) -> Self {
        let mut made = Self { bytes: [0; 64], len: 0 };
        let _ = made.write_fmt(text);
        made
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// With the NUL that ends a name for the kernel.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> core::fmt::Result {
        let most = self.bytes.len() - 1;
        let to = self.bytes[..most].get_mut(self.len..self.len + more.len()).ok_or(core::fmt::Error)?;
        to.copy_from_slice(more.as_bytes());
        self.len += more.len();
        Ok(())
    }
}
