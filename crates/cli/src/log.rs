//! The broker's log: lines that whoever reads standard error does not take are dropped, as nobody must wait for them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Standard error, for one line at a time.
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_or_drop(io::stderr().as_fd(), line, &DROPPED);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines are shorter than PIPE_BUF, for which a pipe that is writable has room.
fn write_or_drop(to: BorrowedFd<'_>, line: &[u8], dropped: &AtomicU64) {
    let has_room = || {
        let mut fds = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1) && fds[0].revents().contains(PollFlags::OUT)
    };
    let lost = dropped.load(Ordering::Relaxed);
    if lost > 0
        && has_room()
        && rustix::io::write(to, format!("({lost} lines before this one are lost)\n").as_bytes()).is_ok()
    {
        dropped.fetch_sub(lost, Ordering::Relaxed);
    }
    if !has_room() || rustix::io::write(to, line).is_err() {
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn who_does_not_read_keeps_nobody_waiting_and_is_told_what_is_lost() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let dropped = AtomicU64::new(0);
        let line = [&[b'x'; 99][..], b"\n"].concat();
        for _ in 0..2000 {
            write_or_drop(writer.as_fd(), &line, &dropped);
        }
        let lost = dropped.load(Ordering::Relaxed);
        assert!((1..2000).contains(&lost));
        reader.read_exact(&mut vec![0; (2000 - lost as usize) * line.len()]).expect("what there is");
        write_or_drop(writer.as_fd(), b"at last\n", &dropped);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, format!("({lost} lines before this one are lost)\nat last\n"));
    }
}
