//! Options of a socket on a lane.

use crate::end::Res;
use crate::{NOTHING, Pair, as_tcp, bytes};
use libc::{IPPROTO_TCP, SOL_SOCKET, TCP_CORK, TCP_NODELAY};
use std::time::{Duration, Instant};

/// What is held back is seen by nobody until it is let go: by `end`.
fn held_until(end: impl Fn(&Pair) -> Res<usize>) {
    as_tcp(|pair| {
        pair.client.set(IPPROTO_TCP, TCP_CORK, 1).expect("a socket");
        pair.client.send(b"held ").expect("room");
        pair.client.send(b"back").expect("room");
        let before = (pair.server.recv(100), pair.server.shows() & libc::POLLIN, pair.server.unread());
        end(pair).expect("a socket");
        (before, pair.server.recv_all())
    });
}

#[test]
fn a_cork_holds_bytes_back_until_it_is_taken_away() {
    held_until(|pair| pair.client.set(IPPROTO_TCP, TCP_CORK, 0));
}

#[test]
fn a_cork_lets_go_with_nodelay() {
    held_until(|pair| pair.client.set(IPPROTO_TCP, TCP_NODELAY, 1));
}

#[test]
fn a_cork_lets_go_at_the_stream_s_end() {
    held_until(|pair| pair.client.shutdown(libc::SHUT_WR));
}

#[test]
fn a_cork_lets_go_after_200_ms() {
    let pair = Pair::open();
    pair.client.set(IPPROTO_TCP, TCP_CORK, 1).expect("a socket");
    pair.client.send(b"held").expect("room");
    pair.pass(Duration::from_millis(100));
    assert_eq!(pair.server.recv(100), Err(NOTHING));
    pair.pass(Duration::from_millis(110));
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"held"[..]));
}

#[test]
fn more_to_come_holds_back_and_the_next_send_lets_go() {
    as_tcp(|pair| {
        let more = libc::MSG_MORE | libc::MSG_DONTWAIT;
        pair.client.send_with(b"more ", more).expect("room");
        let before = pair.server.recv(100);
        pair.client.send(b"done").expect("room");
        (before, pair.server.recv_all())
    });
}

#[test]
fn an_option_that_a_lane_cannot_honour_takes_the_connection_back() {
    for (level, name, value) in [
        (SOL_SOCKET, libc::SO_RCVLOWAT, 100),
        (SOL_SOCKET, libc::SO_OOBINLINE, 1),
        (SOL_SOCKET, libc::SO_TIMESTAMP, 1),
    ] {
        let pair = Pair::open();
        pair.server.send(b"in the ring").expect("room");
        pair.client.set(level, name, value).expect("the kernel has it");
        assert_eq!(pair.client.recv(100).as_deref(), Ok(&b"in the ring"[..]), "{name}");
        assert_eq!(pair.server.send(&bytes(200)), Ok(200));
        assert_eq!(pair.client.recv(300), Ok(bytes(200)));
        assert_eq!(pair.client.send(b"x"), Ok(1));
        assert_eq!(pair.server.recv(10).as_deref(), Ok(&b"x"[..]));
        assert!(pair.is_on_tcp(), "{name}");
    }
}

#[test]
fn probes_are_the_program_s_own_to_look_at() {
    as_tcp(|pair| {
        let end = &pair.client;
        let before = end.get(SOL_SOCKET, libc::SO_KEEPALIVE);
        end.set(SOL_SOCKET, libc::SO_KEEPALIVE, 1).expect("a socket");
        end.set(IPPROTO_TCP, libc::TCP_KEEPIDLE, 77).expect("a socket");
        (
            before,
            [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT]
                .map(|name| end.get(IPPROTO_TCP, name)),
        )
    });
}

#[test]
fn a_read_waits_as_long_as_its_timeout_says() {
    as_tcp(|pair| {
        let time = libc::timeval { tv_sec: 0, tv_usec: 2000 };
        pair.server.set_option(SOL_SOCKET, libc::SO_RCVTIMEO, &time).expect("a socket");
        pair.server.recv_with(10, 0)
    });
}

#[test]
fn a_write_waits_as_long_as_its_timeout_says() {
    let pair = Pair::open();
    let time = libc::timeval { tv_sec: 0, tv_usec: 2000 };
    while pair.client.send(&bytes(100_000)).is_ok() {}
    pair.client.set_option(SOL_SOCKET, libc::SO_SNDTIMEO, &time).expect("a socket");
    let began = Instant::now();
    assert_eq!(pair.client.send_with(&bytes(100_000), 0), Err(NOTHING));
    assert!(began.elapsed() >= Duration::from_millis(2));
}
