//! What has to reach the broker though its socket is full just now: steps of handshakes and endings. A lost ending keeps
//! a DMB or a slot for as long as the session lasts; a lost step strands both ends of a handshake.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shunpike_wire::session::{MAX, ToBroker};

use crate::descriptors;

/// Bytes that can wait: all steps of as many handshakes as a process has at a time, and some thousand endings. A
/// broker that is further behind loses the session, and with it all that it holds.
const ROOM: usize = 256 * 1024;
/// Descriptors that can wait: the DMB of each handshake.
const MOST_FDS: usize = 256;
/// Before each message: its length, and whether a descriptor goes with it.
const PREFIX: usize = 3;

/// Messages in the order in which they were said.
pub struct Outbox {
    /// Ring of messages, each behind its prefix. All zero at first, so that it costs no memory until it is used.
    bytes: [u8; ROOM],
    first: usize,
    len: usize,
    fds: [Option<OwnedFd>; MOST_FDS],
    first_fd: usize,
    fd_count: usize,
}

/// No room for one more.
#[derive(Debug)]
pub struct Full;

impl Outbox {
    /// An empty one.
    pub const fn new() -> Self {
        Self { bytes: [0; ROOM], first: 0, len: 0, fds: [const { None }; MOST_FDS], first_fd: 0, fd_count: 0 }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps a message and the descriptor that goes with it.
    pub fn keep(&mut self, message: &ToBroker, fd: Option<BorrowedFd<'_>>) -> Result<(), Full> {
        let mut encoded = [0; MAX];
        let len = message.encode(&mut encoded).map_err(|_| Full)?;
        if self.len + PREFIX + len > ROOM || fd.is_some() && self.fd_count == MOST_FDS {
            return Err(Full);
        }
        if let Some(fd) = fd {
            let kept = descriptors::internal_copy(fd).map_err(|_| Full)?;
            self.fds[(self.first_fd + self.fd_count) % MOST_FDS] = Some(kept);
            self.fd_count += 1;
        }
        let [low, high] = (len as u16).to_le_bytes();
        for byte in [low, high, u8::from(fd.is_some())].into_iter().chain(encoded.into_iter().take(len)) {
            self.bytes[(self.first + self.len) % ROOM] = byte;
            self.len += 1;
        }
        Ok(())
    }

    /// The one that is next, copied to `to`: its length and its descriptor.
    pub fn first(&self, to: &mut [u8; MAX]) -> Option<(usize, Option<BorrowedFd<'_>>)> {
        let (len, has_fd) = self.prefix()?;
        for (at, byte) in to.iter_mut().take(len).enumerate() {
            *byte = self.bytes[(self.first + PREFIX + at) % ROOM];
        }
        let fd = self.fds[self.first_fd].as_ref().filter(|_| has_fd);
        Some((len, fd.map(AsFd::as_fd)))
    }

    /// The first one was sent.
    pub fn sent(&mut self) {
        let Some((len, has_fd)) = self.prefix() else { return };
        self.first = (self.first + PREFIX + len) % ROOM;
        self.len -= PREFIX + len;
        if has_fd {
            self.drop_first_fd();
        }
    }

    /// Forgets all: what they are about ended with the session.
    pub fn clear(&mut self) {
        while self.fd_count > 0 {
            self.drop_first_fd();
        }
        self.len = 0;
    }

    fn prefix(&self) -> Option<(usize, bool)> {
        let at = |offset| self.bytes[(self.first + offset) % ROOM];
        (self.len > 0).then(|| (usize::from(u16::from_le_bytes([at(0), at(1)])), at(2) != 0))
    }

    fn drop_first_fd(&mut self) {
        if let Some(fd) = self.fds[self.first_fd].take() {
            descriptors::close(fd);
        }
        self.first_fd = (self.first_fd + 1) % MOST_FDS;
        self.fd_count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunpike_wire::session::{ClcBytes, ConnId};

    fn message(n: u64) -> ToBroker {
        match n % 4 {
            0 => ToBroker::Withdraw { conn: ConnId(n) },
            1 => ToBroker::Unregister { token: n },
            2 => ToBroker::Attach { conn: ConnId(n), token: !n },
            _ => ToBroker::Clc { conn: ConnId(n), clc: ClcBytes::new(&[n as u8; 300]).unwrap() },
        }
    }

    fn first(outbox: &Outbox) -> Option<ToBroker> {
        let mut bytes = [0; MAX];
        outbox.first(&mut bytes).map(|(len, fd)| {
            assert!(fd.is_none());
            ToBroker::decode(&bytes[..len]).unwrap()
        })
    }

    #[test]
    fn messages_keep_their_order_and_have_a_bound() {
        let mut outbox = Box::new(Outbox::new());
        for round in 0..3 {
            let mut kept = round;
            while outbox.keep(&message(kept), None).is_ok() {
                kept += 1;
            }
            assert!(kept > 1000, "only {kept} messages fit");
            for n in round..kept {
                assert_eq!(first(&outbox), Some(message(n)));
                outbox.sent();
            }
            assert!(outbox.is_empty() && first(&outbox).is_none());
        }
    }

    #[test]
    fn a_descriptor_stays_with_its_message() {
        descriptors::make_room();
        let mut outbox = Box::new(Outbox::new());
        let file = |n| shunpike_shm::region::create("outbox", 4096 * (n as usize + 1)).unwrap();
        for n in 0..8 {
            let fd = file(n);
            outbox.keep(&message(n), (n % 3 == 0).then(|| fd.as_fd())).unwrap();
        }
        for n in 0..8 {
            let mut bytes = [0; MAX];
            let (len, fd) = outbox.first(&mut bytes).unwrap();
            assert_eq!(ToBroker::decode(&bytes[..len]), Ok(message(n)));
            let size = fd.map(|fd| rustix::fs::fstat(fd).unwrap().st_size);
            assert_eq!(size, (n % 3 == 0).then_some(4096 * (n as i64 + 1)));
            outbox.sent();
        }
        outbox.keep(&message(0), Some(file(0).as_fd())).unwrap();
        outbox.clear();
        assert!(outbox.is_empty() && outbox.fd_count == 0);
    }
}
