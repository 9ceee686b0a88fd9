//! Sends MEGABYTES to HOST PORT with MSG_ZEROCOPY, as long as that saves a copy.
//!
//!     cargo run --release -p shunpike-examples -- 192.0.2.1 9000 1024
//!
//! The same in C: zerocopy.c. When it pays: docs/zerocopy.md.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const BUFFERS: u32 = 8;
const SIZE: usize = 256 * 1024;
/// Copied calls in a row after which it asks no more.
const ENOUGH: u32 = 16;

/// struct sock_extended_err of linux/errqueue.h.
#[repr(C)]
#[derive(Copy, Clone)]
struct Notice {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    first: u32,
    last: u32,
}

const ORIGIN_ZEROCOPY: u8 = 5;
const COPIED: u8 = 1;

/// A connection whose calls may ask for notices.
struct Sender {
    stream: TcpStream,
    flag: i32,
    /// Calls with a notice to come.
    asked: u32,
    /// Calls whose notice has come.
    told: u32,
    copied: u32,
    copied_in_a_row: u32,
}

impl Sender {
    fn new(stream: TcpStream) -> Self {
        let on = 1i32;
        // SAFETY: an open socket, and a value of the size that is given.
        let set = unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, 4)
        };
        // Not every kernel and socket has it; the flag without the option would be ignored.
        let flag = if set == 0 { libc::MSG_ZEROCOPY } else { 0 };
        Self { stream, flag, asked: 0, told: 0, copied: 0, copied_in_a_row: 0 }
    }

    /// Sends a part of `bytes`; returns how much. They may not change until the notice has come.
    fn send(&mut self, bytes: &[u8]) -> Result<usize> {
        // SAFETY: an open socket, and bytes that are borrowed for the call; who changes them later waits first.
        let sent = unsafe {
            let flags = self.flag | libc::MSG_NOSIGNAL;
            libc::send(self.stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
        };
        match usize::try_from(sent) {
            Ok(n) => {
                // A call that took a part is counted, too: one notice for each.
                self.asked += u32::from(self.flag != 0 && n > 0);
                Ok(n)
            }
            Err(_) => match Error::last_os_error() {
                // More than may be locked: copied from here on.
                error if error.raw_os_error() == Some(libc::ENOBUFS) && self.flag != 0 => {
                    self.flag = 0;
                    Ok(0)
                }
                error if error.kind() == ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Waits until at most `left` calls have no notice yet. An unread notice is POLLERR, which need not be asked for.
    fn await_notices(&mut self, left: u32) -> Result<()> {
        loop {
            while let Some(notice) = self.next_notice()? {
                let calls = notice.last.wrapping_sub(notice.first) + 1;
                self.told += calls;
                if notice.code & COPIED != 0 {
                    self.copied += calls;
                    self.copied_in_a_row += calls;
                } else {
                    self.copied_in_a_row = 0;
                }
            }
            if self.asked - self.told <= left {
                return Ok(());
            }
            let mut one = libc::pollfd { fd: self.stream.as_raw_fd(), events: 0, revents: 0 };
            // SAFETY: one entry, which lives through the call.
            let ready = unsafe { libc::poll(&raw mut one, 1, -1) };
            if ready < 0 && Error::last_os_error().kind() != ErrorKind::Interrupted {
                return Err(Error::last_os_error());
            }
            if one.revents & libc::POLLHUP != 0 {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// The next notice that is there: of a range of calls, counted from 0.
    fn next_notice(&self) -> Result<Option<Notice>> {
        loop {
            let mut control = [0u64; 32];
            // SAFETY: an all-zero msghdr is valid.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            // SAFETY: an open socket; the message and its control space live through the call.
            let got = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) };
            if got < 0 {
                let error = Error::last_os_error();
                return if error.kind() == ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
            }
            // SAFETY: the kernel's own control messages; the first has at least the notice's size.
            let notice = unsafe {
                let cmsg = libc::CMSG_FIRSTHDR(&raw const message);
                if cmsg.is_null() || message.msg_flags & libc::MSG_CTRUNC != 0 {
                    return Err(ErrorKind::InvalidData.into());
                }
                libc::CMSG_DATA(cmsg).cast::<Notice>().read_unaligned()
            };
            if notice.origin == ORIGIN_ZEROCOPY {
                return Ok(Some(notice));
            }
        }
    }
}

/// Memory of a mapping of its own. What malloc has, Shunpike copies: it could be given back unseen.
fn pages(size: usize) -> Result<&'static mut [u8]> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, nobody else's, of this size, which stays.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts_mut(at.cast(), size))
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, megabytes] = arguments.as_slice() else {
        eprintln!("usage: zerocopy-client HOST PORT MEGABYTES");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().map_err(|_| Error::from(ErrorKind::InvalidInput));
    let mut sender = Sender::new(TcpStream::connect((host.as_str(), number(port)? as u16))?);
    let mut buffers: Vec<&'static mut [u8]> = (0..BUFFERS).map(|_| pages(SIZE)).collect::<Result<_>>()?;
    let (mut left, mut sent) = (number(megabytes)? << 20, 0u64);
    for turn in (0..BUFFERS as usize).cycle() {
        if left == 0 {
            break;
        }
        // The kernel may still read from the buffer until its notice has come.
        sender.await_notices(BUFFERS - 1)?;
        buffers[turn].fill((sent >> 18) as u8);
        let size = left.min(SIZE as u64) as usize;
        let mut at = 0;
        while at < size {
            at += sender.send(&buffers[turn][at..size])?;
            if at < size {
                sender.await_notices(BUFFERS - 1)?;
            }
        }
        sent += size as u64;
        left -= size as u64;
        if sender.flag != 0 && sender.copied_in_a_row >= ENOUGH {
            println!("the last {} calls were copied: no more of them", sender.copied_in_a_row);
            sender.flag = 0;
        }
    }
    sender.await_notices(0)?;
    println!("{sent} bytes sent, {} calls told of, {} of them copied", sender.told, sender.copied);
    Ok(())
}
