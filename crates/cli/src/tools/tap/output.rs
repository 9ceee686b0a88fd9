//! Where a tap writes: a file, a pipe or a terminal, without being held up by it when it is told to end.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

/// What a pipe takes at once when poll(2) says that it takes anything (PIPE_BUF of pipe(7)).
const AT_ONCE: usize = 4096;
/// What is written to a file at a time.
const MUCH: usize = 1 << 20;
/// How long whoever reads may take nothing after the tap was told to end,
const STALL: Duration = Duration::from_secs(1);
/// and how long it may take in all.
const LAST: Duration = Duration::from_secs(5);

/// Bytes on their way out.
pub struct Output {
    fd: OwnedFd,
    waits: bool,
    buffer: Vec<u8>,
    /// Until when is written, once the tap ends.
    until: Option<Instant>,
    /// Why nothing more is written.
    over: Option<Written>,
}

/// What came of writing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Written {
    /// All.
    Yes,
    /// Told to end meanwhile: the rest is written at the end, as far as there is time.
    Interrupted,
    /// Nobody reads any more.
    Closed,
}

impl Output {
    /// Writes to `fd`.
    pub fn new(fd: OwnedFd) -> Self {
        let is_file = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        Self { fd, waits: !is_file, buffer: Vec::new(), until: None, over: None }
    }

    /// Where to append what is to be written.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether so much waits that it should be written now.
    pub fn is_full(&self) -> bool {
        self.buffer.len() >= MUCH
    }

    /// The tap ends: from now on whoever reads has so long as [`STALL`] and [`LAST`] say, for all that is still written.
    pub fn end(&mut self) {
        self.until = Some(Instant::now() + LAST);
        self.over = self.over.filter(|over| *over == Written::Closed);
    }

    /// Whether nothing more will be written, so that what is put into the buffer is lost.
    pub fn is_over(&self) -> bool {
        self.over == Some(Written::Closed) || (self.over.is_some() && self.until.is_some())
    }

    /// How many bytes whoever reads did not take in time; `None` where all was written, or nobody reads any more.
    pub fn untaken(&self) -> Option<usize> {
        (self.over == Some(Written::Interrupted)).then_some(self.buffer.len())
    }

    /// Writes all, unless `stop` becomes readable, or, at the end, whoever reads takes too long: a stalled reader is waited for once.
    pub fn flush(&mut self, stop: BorrowedFd<'_>) -> Result<Written, Errno> {
        if let Some(over) = self.over {
            return Ok(over);
        }
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
                let patience = match self.until {
                    None => {
                        fds[1] = PollFd::new(&stop, PollFlags::IN);
                        None
                    }
                    Some(until) => {
                        let left = until.saturating_duration_since(Instant::now()).min(STALL);
                        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
                    }
                };
                match poll(&mut fds, patience.as_ref()) {
                    Ok(0) => break Ok(Written::Interrupted),
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(errno) => break Err(errno),
                }
                if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                    break Ok(Written::Closed);
                }
                if self.until.is_none() && fds[1].revents().contains(PollFlags::IN) {
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
        self.over = result.ok().filter(|written| *written != Written::Yes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    fn told() -> (OwnedFd, OwnedFd) {
        let (stop, tells) = pipe().expect("a pipe");
        rustix::io::write(&tells, b"x").expect("room");
        (stop, tells)
    }

    /// Each segment had its own second.
    #[test]
    fn a_reader_that_stalls_is_waited_for_once_at_the_end() {
        let (_unread, to) = pipe().expect("a pipe");
        let ((stop, _tells), mut output) = (told(), Output::new(to));
        output.buffer().resize(MUCH, 0);
        assert_eq!(output.flush(stop.as_fd()), Ok(Written::Interrupted));
        assert!(!output.is_over(), "it has its time yet");
        let began = Instant::now();
        output.end();
        for _ in 0..10 {
            assert_eq!(output.flush(stop.as_fd()), Ok(Written::Interrupted));
            output.buffer().push(0);
        }
        assert!(output.is_over() && output.untaken() > Some(MUCH / 2));
        assert!(began.elapsed() < STALL * 3, "{:?}", began.elapsed());
    }

    #[test]
    fn what_is_read_is_written_at_the_end_too() {
        let (mut reads, to) = std::io::pipe().expect("a pipe");
        let ((stop, _tells), mut output) = (told(), Output::new(to.into()));
        output.buffer().resize(MUCH, b'x');
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            std::io::Read::read_to_end(&mut reads, &mut all).map(|_| all.len())
        });
        output.end();
        assert_eq!(output.flush(stop.as_fd()), Ok(Written::Yes));
        assert!(!output.is_over());
        drop(output);
        assert_eq!(reader.join().expect("a reader").expect("readable"), MUCH);
    }

    #[test]
    fn nobody_is_waited_for_who_reads_no_more() {
        let (reads, to) = pipe().expect("a pipe");
        let ((stop, _tells), mut output) = (told(), Output::new(to));
        drop(reads);
        output.buffer().push(0);
        for _ in 0..2 {
            assert_eq!(output.flush(stop.as_fd()), Ok(Written::Closed));
            output.end();
        }
        assert!(output.is_over());
    }
}
