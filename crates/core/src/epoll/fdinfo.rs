//! Registrations that were made behind our back, as the kernel tells of them.

use std::io::Write;
use std::sync::atomic::Ordering;

use super::Set;

/// Whether the kernel has a registration of `fd` in the set, by whomever: io_uring and raw system calls make
/// them behind our back. Asked of /proc/self/fdinfo (proc_pid_fdinfo(5)), without memory of its own.
pub(super) fn kernel_knows(set: &Set, fd: i32) -> bool {
    use rustix::fs::{Mode, OFlags};
    let mut path = [0u8; 40];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/self/fdinfo/{}\0", set.epfd.load(Ordering::Relaxed)).is_err() {
        return false;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut targets = Targets::default();
    let mut bytes = [0u8; 4096];
    while let Ok(n @ 1..) = rustix::io::read(&file, &mut bytes) {
        if bytes[..n].iter().any(|&byte| targets.next(byte) == Some(fd)) {
            return true;
        }
    }
    false
}

/// Finds the numbers of the lines "tfd: N ..." in a stream of bytes.
#[derive(Default)]
struct Targets {
    /// Bytes of "tfd:" seen since the line's beginning; more: not such a line, or its number is over.
    at: usize,
    number: Option<i32>,
}

impl Targets {
    /// The number that ends with this byte.
    fn next(&mut self, byte: u8) -> Option<i32> {
        const KEY: &[u8] = b"tfd:";
        match (byte, KEY.get(self.at)) {
            (b'\n', _) => *self = Self::default(),
            (byte, Some(&key)) if byte == key => self.at += 1,
            (b'0'..=b'9', None) if self.at == KEY.len() => {
                let digit = i32::from(byte - b'0');
                self.number = Some(self.number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            }
            (b' ', None) if self.number.is_none() => {}
            _ => {
                self.at = KEY.len() + 1;
                return self.number.take();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<i32> {
        let mut targets = Targets::default();
        text.bytes().filter_map(|byte| targets.next(byte)).collect()
    }

    #[test]
    fn the_kernel_s_list_of_registrations_is_read_to_its_numbers() {
        let line = "tfd:        7 events:       19 data:                7  pos:0 ino:1b sdev:8\n";
        assert_eq!(
            targets(&format!(
                "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1\n{line}{}",
                line.replace('7', "412")
            )),
            [7, 412]
        );
        assert_eq!(targets("data: 7\nxtfd: 9 \ntfd 3 \n"), []);
    }
}
