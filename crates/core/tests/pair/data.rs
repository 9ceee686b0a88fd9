//! Bytes, flags and sizes, as on TCP.

use crate::{NOTHING, Pair, as_tcp, bytes};
use std::io::Write;
use std::os::fd::AsRawFd;

#[test]
fn bytes_arrive_as_they_were_sent() {
    as_tcp(|pair| {
        for n in [1, 7, 64, 1000, 4096, 10_000] {
            assert_eq!(pair.client.send(&bytes(n)), Ok(n));
            assert_eq!(pair.server.recv_all(), (bytes(n), Some(NOTHING)), "{n}");
        }
    });
}

#[test]
fn both_ways_at_once() {
    as_tcp(|pair| {
        pair.client.send(b"to the server").expect("room");
        pair.server.send(b"to the client").expect("room");
        (pair.client.recv_all(), pair.server.recv_all())
    });
}

#[test]
fn a_reader_takes_as_much_as_it_asks_for() {
    as_tcp(|pair| {
        pair.client.send(b"one two three").expect("room");
        [4, 4, 100, 100].map(|size| pair.server.recv(size))
    });
}

#[test]
fn a_peek_leaves_the_bytes_there() {
    as_tcp(|pair| {
        pair.client.send(b"peeked").expect("room");
        let peek = |size| pair.server.recv_with(size, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        (peek(3), peek(100), pair.server.recv(100), peek(100))
    });
}

#[test]
fn a_read_of_all_waits_for_all_that_is_there() {
    as_tcp(|pair| {
        pair.client.send(b"half").expect("room");
        pair.client.send(b"half").expect("room");
        pair.server.recv_with(8, libc::MSG_WAITALL)
    });
}

#[test]
fn bytes_are_thrown_away_where_the_program_says_so() {
    as_tcp(|pair| {
        pair.client.send(b"away, kept").expect("room");
        let thrown = pair.server.recv_with(6, libc::MSG_TRUNC | libc::MSG_DONTWAIT).map(|bytes| bytes.len());
        (thrown, pair.server.recv(100))
    });
}

#[test]
fn a_vector_is_one_stretch_of_bytes() {
    as_tcp(|pair| {
        let written = pair.client.writev(&[b"a", b"", b"vector", &bytes(5000)]);
        (written, pair.server.recv_all())
    });
}

#[test]
fn a_file_is_sent_from_its_beginning_to_its_end() {
    as_tcp(|pair| {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes(9000)).expect("room");
        let sent = [4000, 20_000].map(|count| pair.client.sendfile(file.as_raw_fd(), count));
        (sent, pair.server.recv_all())
    });
}

#[test]
fn what_is_unread_and_unsent_is_told() {
    as_tcp(|pair| {
        pair.client.send(&bytes(300)).expect("room");
        let before = pair.server.unread();
        let read = pair.server.recv(100).map(|bytes| bytes.len());
        (before, read, pair.server.unread(), pair.client.unread())
    });
}

#[test]
fn what_the_peer_has_not_read_counts_as_unsent() {
    let pair = Pair::open();
    pair.client.send(&bytes(300)).expect("room");
    assert_eq!(pair.client.unsent(), 300);
    pair.server.recv(100).expect("bytes");
    assert_eq!(pair.client.unsent(), 200);
    pair.server.recv_all();
    assert_eq!(pair.client.unsent(), 0);
}

#[test]
fn a_writer_finds_the_end_of_the_room_and_none_of_its_bytes_is_lost() {
    for pair in [Pair::plain, Pair::open].map(|make| make as fn() -> Pair) {
        let pair = pair();
        let (mut sent, mut refused) = (Vec::new(), false);
        for at in 0..10_000usize {
            match pair.client.send(&bytes(5000 + at)) {
                Ok(n) => sent.extend_from_slice(&bytes(5000 + at)[..n]),
                Err(errno) => {
                    assert_eq!(errno, NOTHING);
                    refused = true;
                    break;
                }
            }
        }
        assert!(refused, "it has an end");
        assert_eq!(pair.client.shows() & libc::POLLOUT, 0);
        let (read, end) = pair.server.recv_all();
        assert!(read == sent, "{} of {} bytes", read.len(), sent.len());
        assert_eq!(end, Some(NOTHING));
        assert_ne!(pair.client.shows() & libc::POLLOUT, 0, "there is room again");
    }
}

#[test]
fn a_long_stream_goes_round_the_ring() {
    let pair = Pair::open();
    let part = bytes(50_021);
    for _ in 0..100 {
        let mut sent = 0;
        let mut read = Vec::new();
        while sent < part.len() {
            sent += pair.client.send(&part[sent..]).expect("room");
            read.extend(pair.server.recv_all().0);
        }
        assert!(read == part);
    }
    assert!(pair.is_on_lanes());
}

#[test]
fn urgent_data_takes_the_connection_back_to_tcp() {
    let pair = Pair::open();
    pair.client.send(b"before").expect("room");
    assert_eq!(pair.client.send_with(b"!", libc::MSG_OOB), Ok(1));
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"before"[..]));
    assert_ne!(pair.server.shows() & libc::POLLPRI, 0);
    assert_eq!(pair.server.recv_with(10, libc::MSG_OOB).as_deref(), Ok(&b"!"[..]));
    assert_eq!(pair.client.send(b"after"), Ok(5));
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"after"[..]));
    assert!(pair.is_on_tcp());
}
