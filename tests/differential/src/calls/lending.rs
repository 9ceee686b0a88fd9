//! Memory that is sent with MSG_ZEROCOPY, and the notices that tell that it is free again.

use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use libc::c_int;

use super::{Said, errno, finish, hash, message, set};
use crate::op::{End, Lent};

/// Most time that notices take once the bytes were read.
const MOST: Duration = Duration::from_secs(2);
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;

/// A mapping that was sent.
pub struct Lending {
    at: *mut libc::c_void,
    size: usize,
    is_mapped: bool,
    /// Calls of which a notice tells.
    calls: u32,
    noticed: u32,
}

impl Lending {
    /// Sends a new mapping by calls that do not wait, and does with it as `lent` says: how many bytes were sent, and their hash.
    pub fn send(fd: RawFd, size: usize, serial: u64, lent: Lent) -> (Self, Said) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, filled before anybody has it.
        let (at, bytes) = unsafe {
            let at = libc::mmap(null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(at, libc::MAP_FAILED, "a mapping");
            (at, std::slice::from_raw_parts_mut(at.cast::<u8>(), size))
        };
        for (p, byte) in bytes.iter_mut().enumerate() {
            *byte = ((p as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(serial << 32) >> 40) as u8;
        }
        let mut lending = Self { at, size, is_mapped: true, calls: 0, noticed: 0 };
        let set_to = set(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
        let (mut sent, mut error) = (0, 0);
        while sent < size && set_to == 0 {
            const FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY;
            // SAFETY: a part of the mapping.
            let n = unsafe { libc::send(fd, bytes[sent..].as_ptr().cast(), size - sent, FLAGS) };
            if n <= 0 {
                error = errno();
                break;
            }
            lending.calls += 1;
            sent += n as usize;
        }
        let hashed = hash(0, &bytes[..sent]);
        lending.happens(fd, lent);
        let said =
            if sent == 0 { Said { ret: -1, errno: error, more: Vec::new() } } else { Said::of(sent as i64) };
        (lending, said.with([hashed as i64]))
    }

    fn happens(&mut self, fd: RawFd, lent: Lent) {
        match lent {
            Lent::Stays => {}
            Lent::Unmapped => self.unmap(),
            Lent::Discarded => {
                // SAFETY: our mapping; nobody reads it again but who has been sent it.
                unsafe { libc::madvise(self.at, self.size, libc::MADV_DONTNEED) };
            }
            Lent::Forked => {
                // SAFETY: the child ends at once.
                unsafe {
                    let pid = libc::fork();
                    if pid == 0 {
                        libc::_exit(0);
                    }
                    libc::waitpid(pid, null_mut(), 0);
                }
            }
            Lent::Ended => {
                finish(fd, End::ShutWr);
            }
        }
    }

    fn unmap(&mut self) {
        if std::mem::take(&mut self.is_mapped) {
            // SAFETY: our mapping, of which there is no reference.
            unsafe { libc::munmap(self.at, self.size) };
        }
    }

    /// Reads notices until all calls were told of: whether they were, and not more.
    pub fn end(mut self, fd: RawFd) -> Said {
        let begin = Instant::now();
        while self.noticed < self.calls && begin.elapsed() < MOST {
            if !self.read_one(fd) {
                let mut one = libc::pollfd { fd, events: 0, revents: 0 };
                // SAFETY: one entry, ours. An error shows a notice.
                unsafe { libc::poll(&raw mut one, 1, 100) };
                if one.revents & libc::POLLERR == 0 {
                    continue;
                }
            }
        }
        while self.read_one(fd) {}
        let missing = i64::from(self.calls) - i64::from(self.noticed);
        self.unmap();
        set(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0);
        Said::of(missing)
    }

    fn read_one(&mut self, fd: RawFd) -> bool {
        let mut control = [0u64; 16];
        let mut header = message(&mut [], &mut control);
        // SAFETY: the header's buffer is ours; the kernel, or who stands in for it, has filled it.
        unsafe {
            if libc::recvmsg(fd, &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) < 0 {
                return false;
            }
            let one = libc::CMSG_FIRSTHDR(&raw const header);
            if one.is_null() {
                return false;
            }
            let error = libc::CMSG_DATA(one).cast::<libc::sock_extended_err>().read_unaligned();
            if error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                self.noticed += error.ee_data - error.ee_info + 1;
            }
        }
        true
    }
}
