//! How a connection comes on lanes.

use crate::{Pair, bytes};
use shunpike_core::{call, conn, options, sys};
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;
use std::time::Duration;

#[test]
fn a_busy_connection_comes_on_lanes_both_ways() {
    let pair = Pair::open();
    assert_eq!(pair.state(), (Phase::Open, Phase::Open));
    let before = pair.client.carried();
    pair.talk();
    assert_eq!(pair.client.carried(), before + 14);
}

#[test]
fn a_quiet_one_stays_on_tcp() {
    let pair = Pair::watched();
    pair.talk();
    pair.talk();
    assert_eq!(pair.state(), (Phase::Watched, Phase::Watched));
    assert!(pair.is_on_tcp());
}

#[test]
fn one_end_alone_waits_for_the_other() {
    let pair = Pair::watched();
    let stays = pair.server.conn();
    conn::revoke_for_good(stays, pair.server.fd, Reason::OptionUnsupported);
    for _ in 0..32 {
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.server.phase(), Phase::Stays);
    assert_ne!(pair.client.phase(), Phase::Open);
}

#[test]
fn what_the_kernel_says_before_the_lane_keeps_it_on_tcp() {
    let pair = Pair::watched();
    // Set past us, as on a listening socket.
    sys::set_option(pair.server.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &2i32).expect("a socket");
    options::ask_the_kernel();
    for _ in 0..32 {
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.server.phase(), Phase::Stays);
    assert_eq!(pair.server.reason(), Some(Reason::OptionUnsupported));
}

#[test]
fn whose_waits_are_not_seen_stays_on_tcp() {
    let pair = Pair::watched();
    for end in [&pair.client, &pair.server] {
        rustix::io::ioctl_fionbio(sys::borrowed(end.fd), true).expect("a socket");
        call::set_nonblock(end.fd, true);
    }
    for _ in 0..64 {
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            from.send(b"message").expect("room");
            assert_eq!(to.recv(100).as_deref(), Ok(&b"message"[..]));
            pair.pump();
        }
        pair.pass(Duration::from_millis(100));
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.client.reason(), Some(Reason::WaitsUnseen));
}

#[test]
fn bytes_that_went_past_the_hooks_keep_it_on_tcp() {
    let pair = Pair::watched();
    // SAFETY: the byte is there.
    assert_eq!(unsafe { libc::send(pair.client.fd, c"x".as_ptr().cast(), 1, 0) }, 1);
    assert_eq!(pair.server.recv(1).as_deref(), Ok(&b"x"[..]));
    for _ in 0..32 {
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.client.reason(), Some(Reason::BypassedHooks));
}

#[test]
fn bytes_unread_while_it_opens_are_read_before_the_lane_s() {
    let pair = Pair::watched();
    // The server always has some of TCP's bytes to read.
    let mut sent = Vec::new();
    let mut send = |n: usize| {
        sent.extend_from_slice(&bytes(n));
        pair.client.send(&bytes(n)).expect("room");
    };
    send(5000);
    let mut read = Vec::new();
    for _ in 0..200 {
        send(100);
        assert_ne!(pair.server.poll(libc::POLLIN, Some(0)), 0);
        read.extend(pair.server.recv(100).expect("bytes"));
        pair.server.send(b"answer").expect("room");
        assert_ne!(pair.client.poll(libc::POLLIN, Some(0)), 0);
        pair.client.recv(100).expect("bytes");
        pair.pump();
    }
    assert!(pair.is_on_lanes());
    send(10);
    read.extend(pair.server.recv_all().0);
    assert!(read == sent);
}
