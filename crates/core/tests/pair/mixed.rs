//! Calls of all kinds in an order that a number says, from the first byte on, with lanes that open and end in between: each stream's bytes
//! come once and in order.

use crate::end::End;
use crate::epoll::Epoll;
use crate::{NOTHING, Pair};
use shunpike_core::conn;
use shunpike_wire::Reason;
use std::time::Duration;

/// Programs, where the environment's PAIR_PROGRAMS does not say how many, and calls of each.
const PROGRAMS: u64 = 40;
const CALLS: usize = 400;
/// So much may be unread, bytes.
const MOST: usize = 30_000;

/// Numbers that look random: xorshift64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// One direction: bytes sent and read so far. Byte number n is always the same.
#[derive(Default)]
struct Stream {
    sent: usize,
    read: usize,
}

fn stretch(from: usize, n: usize) -> Vec<u8> {
    (from..from + n).map(|at| (at % 253) as u8).collect()
}

impl Stream {
    fn send(&mut self, end: &End, n: usize, flags: i32) {
        let n = n.min(MOST - (self.sent - self.read));
        if n > 0 {
            match end.send_with(&stretch(self.sent, n), flags | libc::MSG_DONTWAIT) {
                Ok(n) => self.sent += n,
                Err(errno) => assert_eq!(errno, NOTHING),
            }
        }
    }

    fn recv(&mut self, end: &End, n: usize, flags: i32) {
        let read = end.recv_with(n, flags | libc::MSG_DONTWAIT);
        match read {
            Ok(bytes) => {
                assert!(bytes == stretch(self.read, bytes.len()), "at {}", self.read);
                assert!(self.read + bytes.len() <= self.sent);
                self.read += if flags & libc::MSG_PEEK == 0 { bytes.len() } else { 0 };
            }
            Err(errno) => assert_eq!(errno, NOTHING),
        }
    }
}

fn run(seed: u64, pair: &Pair) {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut streams = [Stream::default(), Stream::default()];
    let ends = [&pair.client, &pair.server];
    let (set, by_edges) = (Epoll::new(), seed.is_multiple_of(2));
    for end in ends {
        // Levels in one half of all programs, edges in the other, which may be of bytes that were read since.
        let edges = if by_edges { libc::EPOLLET } else { 0 };
        set.add(end.fd, libc::EPOLLIN | edges).expect("a set");
    }
    for _ in 0..CALLS {
        let side = numbers.below(2);
        let (here, there) = (ends[side], ends[1 - side]);
        match numbers.below(40) {
            0..=9 => streams[side].send(here, 1 + numbers.below(100), 0),
            10..=12 => streams[side].send(here, 1 + numbers.below(20_000), 0),
            13 => streams[side].send(here, 1 + numbers.below(5000), libc::MSG_MORE),
            14..=23 => streams[side].recv(there, 1 + numbers.below(150), 0),
            24..=26 => streams[side].recv(there, 1 + numbers.below(30_000), 0),
            27 => streams[side].recv(there, 1 + numbers.below(10_000), libc::MSG_PEEK),
            28 => assert!(there.unread() <= streams[side].sent - streams[side].read),
            29..=32 => {
                // Bytes that are shown are there.
                let is_shown = there.poll(libc::POLLIN, Some(0)) & libc::POLLIN != 0;
                let before = streams[side].read;
                streams[side].recv(there, 1, 0);
                assert!(!is_shown || streams[side].read > before, "shown and not there");
            }
            33 => drop(here.shows()),
            38 => {
                for (fd, events) in set.wait(0) {
                    // Whose descriptor it is, and whose bytes.
                    let side = usize::from(fd == pair.client.fd);
                    let before = streams[side].read;
                    streams[side].recv(ends[1 - side], 1, 0);
                    assert!(
                        by_edges || events & libc::EPOLLIN == 0 || streams[side].read > before,
                        "told and not there"
                    );
                }
            }
            34 => pair.pass(Duration::from_millis(numbers.below(30_000) as u64)),
            35 if numbers.below(3) == 0 => conn::revoke(here.conn(), here.fd, Reason::Revoked),
            36 => drop(here.set(libc::IPPROTO_TCP, libc::TCP_CORK, numbers.below(2) as i32)),
            37 => drop(here.dup()),
            _ => pair.pump(),
        }
    }
    for end in ends {
        end.set(libc::IPPROTO_TCP, libc::TCP_CORK, 0).expect("a socket");
    }
    // All that is on its way comes, as each end looks after its own.
    for _ in 0..1000 {
        for side in [0, 1] {
            ends[side].shows();
            streams[side].recv(ends[1 - side], MOST, 0);
        }
        if streams.iter().all(|stream| stream.read == stream.sent) {
            return;
        }
    }
    panic!("bytes are missing: {:?}", streams.map(|stream| (stream.sent, stream.read)));
}

#[test]
fn bytes_come_once_and_in_order() {
    let programs = std::env::var("PAIR_PROGRAMS").map_or(PROGRAMS, |n| n.parse().expect("a number"));
    let mut by_lanes = 0;
    for seed in 1..=programs {
        let pair = Pair::watched();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &pair)));
        assert!(outcome.is_ok(), "program {seed}, {:?}", pair.state());
        by_lanes += u64::from(pair.client.carried() > 0);
    }
    assert!(by_lanes > programs / 2, "{by_lanes} of {programs} had lanes");
}
