//! Where a tap writes: a file, a pipe or a terminal, without being held up by it when it is told to end.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::time::Timespec;

/// What a pipe takes at once when poll(2) says that it takes anything (PIPE_BUF of pipe(7)).
const AT_ONCE: usize = 4096;
/// What is written to a file at a time.
const MUCH: usize = 1 << 20;
/// How long whoever reads may take after the tap was told to end.
const LAST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Bytes on their way out.
pub struct Output {
    fd: OwnedFd,
    waits: bool,
    buffer: Vec<u8>,
}

/// What came of writing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Written {
    /// All.
    Yes,
    /// Told to end meanwhile: the rest is written by another call.
    Interrupted,
    /// Nobody reads any more.
    Closed,
}

impl Output {
    /// Writes to `fd`.
    pub fn new(fd: OwnedFd) -> Self {
        let is_file = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        Self { fd, waits: !is_file, buffer: Vec::new() }
    }

    /// Where to append what is to be written.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether so much waits that it should be written now.
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= MUCH
    }

    /// Writes all, unless `stop` becomes readable; without `stop`, for a second at most each time that it must wait.
    pub fn flush(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<Written, Errno> {
        let mut done = 0;
        let result = loop {
            let Some(rest) = self.buffer.get(done..).filter(|rest| !rest.is_empty()) else {
                break Ok(Written::Yes);
            };
            let mut piece = rest;
            if self.waits {
                piece = &rest[..rest.len().min(AT_ONCE)];
                let mut fds =
                    [PollFd::new(&self.fd, PollFlags::OUT), PollFd::new(&self.fd, PollFlags::empty())];
                if let Some(stop) = &stop {
                    fds[1] = PollFd::new(stop, PollFlags::IN);
                }
                match poll(&mut fds, if stop.is_some() { None } else { Some(&LAST) }) {
                    Ok(0) => break Ok(Written::Interrupted),
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(errno) => break Err(errno),
                }
                if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                    break Ok(Written::Closed);
                }
                if stop.is_some() && fds[1].revents().contains(PollFlags::IN) {
                    break Ok(Written::Interrupted);
                }
            }
            match rustix::io::write(&self.fd, piece) {
                Ok(n) => done += n,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => break Ok(Written::Closed),
                Err(errno) => break Err(errno),
            }
        };
        self.buffer.drain(..done);
        result
    }

    /// Whether whoever reads a pipe has gone away.
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        self.waits
            && poll(&mut fds, Some(&Timespec::default())).is_ok()
            && fds[0].revents().intersects(PollFlags::ERR)
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
