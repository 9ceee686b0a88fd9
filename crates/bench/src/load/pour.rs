//! One connection, bytes in one direction, with and without MSG_ZEROCOPY: what they cost each end in CPU time.

use super::endpoint::Endpoint;
use super::warm_up;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

/// What a reader asks for in a call, bytes.
const READ: usize = 256 * 1024;
/// Memory that a sender takes its writes from in turn, bytes: not written again before it is told of.
const MEMORY: usize = 4 << 20;
/// Fewest writes in it.
const WRITES: usize = 8;

/// CPU time of all threads of this process, nanoseconds.
fn cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads to the end, then answers how many bytes came and what CPU time they took.
pub fn drain(at: &Endpoint) -> io::Result<()> {
    let mut stream = at.listen()?.accept()?;
    let mut buffer = vec![1; READ];
    let (mut bytes, begin) = (0u64, cpu());
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            n => bytes += n as u64,
        }
    }
    stream.write_all(&bytes.to_le_bytes())?;
    stream.write_all(&(cpu() - begin).to_le_bytes())
}

/// Whole pages, as a program has that lends them. (The kernel puts a mapping of this size where huge pages fit; malloc's is a page longer.)
fn memory(len: usize) -> io::Result<&'static [u8]> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, nobody else's, of this size, which stays. By libc's name: what no hook sees mapped is not lent.
    let memory = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        std::slice::from_raw_parts_mut(at.cast::<u8>(), len)
    };
    memory.fill(2);
    Ok(memory)
}

/// Writes of `size` bytes; `zerocopy`: with the flag, and all notices awaited.
pub fn pour(to: &Endpoint, size: usize, seconds: f64, zerocopy: bool) -> io::Result<Value> {
    let mut stream = to.connect()?;
    let memory = memory(MEMORY.max(WRITES * size))?;
    let mut notices = Notices { fd: stream.as_raw_fd(), asked: 0, told: 0 };
    if zerocopy {
        notices.turn_on()?;
    }
    let most = (memory.len() / size) as u32;
    let mut send = |seconds: f64| -> io::Result<u64> {
        let (mut bytes, start) = (0, Instant::now());
        while start.elapsed().as_secs_f64() < seconds {
            for block in memory.chunks_exact(size) {
                if zerocopy {
                    notices.send(block, most)?;
                } else {
                    stream.write_all(block)?;
                }
                bytes += size as u64;
            }
        }
        Ok(bytes)
    };
    let before = send(warm_up(seconds))?;
    let (begin, start) = (cpu(), Instant::now());
    let bytes = send(seconds)?;
    notices.await_all_but(0)?;
    let (own, taken) = (cpu() - begin, start.elapsed().as_secs_f64());
    stream.end_writing()?;
    let mut answers = [[0; 8]; 2];
    stream.read_exact(answers.as_flattened_mut())?;
    let [arrived, theirs] = answers.map(u64::from_le_bytes);
    if arrived != before + bytes {
        return Err(io::Error::other("not as many bytes arrived as were sent"));
    }
    // The reader's share of what was measured.
    let theirs = theirs as f64 * bytes as f64 / arrived as f64;
    Ok(json!({ "bytes": bytes, "seconds": taken, "sender": own, "reader": theirs }))
}

/// The calls of a socket that ask for notices.
struct Notices {
    fd: RawFd,
    asked: u32,
    told: u32,
}

impl Notices {
    fn turn_on(&self) -> io::Result<()> {
        let on = 1i32;
        let value = (&raw const on).cast();
        // SAFETY: an open socket, and a value of the size that is given.
        let set = unsafe { libc::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, 4) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn send(&mut self, mut bytes: &[u8], most: u32) -> io::Result<()> {
        while !bytes.is_empty() {
            self.await_all_but(most - 1)?;
            let flags = libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL;
            // SAFETY: an open socket, and bytes that nobody writes.
            let sent = unsafe { libc::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) };
            let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
            self.asked += 1;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Waits until at most `left` calls are not told of.
    fn await_all_but(&mut self, left: u32) -> io::Result<()> {
        while self.asked - self.told > left {
            if self.read()? {
                continue;
            }
            let mut one = libc::pollfd { fd: self.fd, events: 0, revents: 0 };
            // SAFETY: one entry, which lives through the call.
            if unsafe { libc::poll(&raw mut one, 1, -1) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Reads a notice, if there is one.
    fn read(&mut self) -> io::Result<bool> {
        let mut control = [0u64; 32];
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: an open socket; the message and its control space live through the call.
        if unsafe { libc::recvmsg(self.fd, &raw mut message, libc::MSG_ERRQUEUE) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) };
        }
        // SAFETY: the first control message is the notice (struct sock_extended_err): its last number is its fourth word.
        self.told = unsafe {
            let notice = libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&raw const message)).cast::<u32>();
            notice.add(3).read_unaligned().wrapping_add(1)
        };
        Ok(true)
    }
}
