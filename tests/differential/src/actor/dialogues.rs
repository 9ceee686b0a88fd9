//! An actor's part in what both ends do together: one sends and the other receives, many times, or as much as there is room for.

use std::os::fd::RawFd;

use super::{Actor, is_on_lane};
use crate::calls::{self, Said, Times};
use crate::op::{By, Lent, Opt, RoomBy, Uncork};

impl Actor {
    pub(super) fn lend(&mut self, index: u8, size: u32, lent: Lent) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let (lending, said) = calls::Lending::send(conn.fd, size as usize, conn.serial, lent);
        conn.lending = Some(lending);
        said
    }

    pub(super) fn lent(&mut self, index: u8) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        conn.lending.take().map_or(Said::of(-1), |lending| lending.end(conn.fd))
    }

    pub(super) fn cork(&mut self, index: u8, by: Uncork, pieces: u8, size: usize) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        if by != Uncork::More {
            calls::set_option(conn.fd, Opt::Cork(true));
        }
        let has_more = matches!(by, Uncork::More | Uncork::MoreOff);
        let sent = (0..pieces).map(|_| {
            let bytes = Self::bytes(conn, size);
            calls::send_more(conn.fd, &bytes, has_more)
        });
        Said::of(sent.sum())
    }

    pub(super) fn uncork(&mut self, index: u8, by: Uncork, size: usize) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        match by {
            Uncork::More => {
                let bytes = Self::bytes(conn, size);
                Said::of(calls::send_more(conn.fd, &bytes, false))
            }
            Uncork::Off | Uncork::MoreOff => calls::set_option(conn.fd, Opt::Cork(false)),
            Uncork::NoDelay => calls::set_option(conn.fd, Opt::NoDelay(true)),
        }
    }

    pub(super) fn flood(&mut self, index: u8, by: RoomBy, chunk: usize) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let mut room = calls::Room::new(conn.fd, by);
        let said = room.fill(chunk, conn.serial);
        conn.room = Some(room);
        said
    }

    /// What came of it, how long the slowest exchange took, and calls as in [`Reply::calls`](crate::order::Reply::calls).
    pub(super) fn echo(
        &mut self,
        index: u8,
        rounds: u16,
        size: usize,
        asks: bool,
    ) -> (Said, Times, [u64; 2]) {
        let send = calls::send_all;
        self.turns(index, [rounds as usize, size], asks, send, |fd| move |n| calls::receive_all(fd, n))
    }

    /// The same, with messages of two parts, and reads as `by` says.
    pub(super) fn exchange(
        &mut self,
        index: u8,
        by: By,
        rounds: u16,
        size: usize,
        asks: bool,
    ) -> (Said, Times, [u64; 2]) {
        let send = |fd, bytes: &[u8]| {
            let (header, body) = bytes.split_at((size / 8).max(1));
            calls::send_all(fd, header) && calls::send_all(fd, body)
        };
        self.turns(index, [rounds as usize, size], asks, send, |fd| {
            let mut reader = calls::Reader::new(fd, by);
            move |n| reader.read(n)
        })
    }

    fn turns<R: FnMut(usize) -> Option<Vec<u8>>>(
        &mut self,
        index: u8,
        [rounds, size]: [usize; 2],
        asks: bool,
        send: impl Fn(RawFd, &[u8]) -> bool,
        reader: impl Fn(RawFd) -> R,
    ) -> (Said, Times, [u64; 2]) {
        let begin = self.timer.now();
        let Some(conn) = self.conns.get_mut(&index) else {
            return (Said::of(-1), Times::default(), [0; 2]);
        };
        let (mut slowest, mut hash, mut calls) = (Times::default(), 0, [0; 2]);
        let failed = |round: usize, slowest, calls| {
            (Said { more: vec![round as i64], ..Said::failed() }, slowest, calls)
        };
        let mut receive = reader(conn.fd);
        for round in 0..rounds {
            calls[0] += 2;
            calls[1] += 2 * u64::from(is_on_lane(self.arena.state(conn.fd)));
            let began = self.timer.now();
            let bytes = Self::bytes(conn, size);
            if asks && !send(conn.fd, &bytes) {
                return failed(round, slowest, calls);
            }
            let Some(got) = receive(size) else { return failed(round, slowest, calls) };
            hash = calls::hash(hash, &got);
            if !asks && !send(conn.fd, &bytes) {
                return failed(round, slowest, calls);
            }
            // The other end may have been held up before our first exchange.
            if round > 0 || asks {
                slowest = slowest.max(self.timer.since(&began));
            }
        }
        slowest.cpu_ns = self.timer.since(&begin).cpu_ns;
        (Said { ret: 0, errno: 0, more: vec![hash as i64] }, slowest, calls)
    }
}
