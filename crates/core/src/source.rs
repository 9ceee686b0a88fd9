//! What a send call sends: the program's buffers, or a file.

use rustix::io::Errno;
use shunpike_shm::lane::Dmb;

use crate::bufs::Bufs;
use crate::{sys, user};

/// Where the bytes come from.
pub enum Source<'a> {
    /// The program's buffers.
    Memory(Bufs<'a>),
    /// A file, read straight into the ring: sendfile(2).
    File {
        /// Descriptor of the file.
        fd: i32,
        /// Where to read.
        offset: i64,
        /// Bytes asked for and not yet sent.
        left: usize,
        /// Bytes sent.
        done: usize,
    },
}

impl Source<'_> {
    pub(crate) fn left(&self) -> usize {
        match self {
            Source::Memory(bufs) => bufs.left(),
            Source::File { left, .. } => *left,
        }
    }

    pub(crate) fn done(&self) -> usize {
        match self {
            Source::Memory(bufs) => bufs.done(),
            Source::File { done, .. } => *done,
        }
    }

    pub(crate) fn advance(&mut self, n: usize) {
        match self {
            Source::Memory(bufs) => bufs.advance(n),
            Source::File { offset, left, done, .. } => {
                *left -= n.min(*left);
                *done += n;
                *offset += n as i64;
            }
        }
    }

    /// Puts up to `n` bytes into the ring at `at`; returns how many.
    pub(crate) fn fill(&self, dmb: &Dmb, at: u64, n: usize, stores: user::Stores) -> Result<usize, Errno> {
        match self {
            Source::Memory(bufs) => {
                // SAFETY: n is at most what is free in the ring, and the send lock makes the stretch ours.
                unsafe { bufs.fill(dmb, at, n, stores) }.map(|()| n)
            }
            Source::File { fd, offset, .. } => {
                let (to, room) = dmb.span(at);
                // The ring is mapped: a fault there means that the system has no memory for it.
                let no_memory = |errno| if errno == Errno::FAULT { Errno::NOMEM } else { errno };
                sys::read_file(*fd, to, n.min(room), *offset).map_err(no_memory)
            }
        }
    }
}
