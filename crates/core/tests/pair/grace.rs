//! Bytes that nobody reads: borne for a while.

use crate::{NOTHING, Pair, bytes};
use shunpike_core::sys;
use shunpike_wire::Reason;
use std::time::Duration;

/// Time passes, and then the sender goes to sleep: before that it looks. More than once, as a time that was over before it came to
/// sleep shows nothing.
fn later(pair: &Pair, ms: u64) {
    pair.pass(Duration::from_millis(ms));
    for _ in 0..3 {
        pair.client.poll(libc::POLLIN, Some(2_000_000));
    }
}

#[test]
fn what_a_reader_leaves_unread_goes_by_tcp_after_the_grace() {
    let pair = Pair::open();
    pair.client.send(b"to who waits by TCP").expect("room");
    // From the first look on that finds them unread.
    later(&pair, 0);
    later(&pair, 5000);
    let by_tcp = || sys::queue(pair.server.fd, sys::SIOCINQ).expect("a socket");
    assert_eq!(by_tcp(), 0, "not yet");
    later(&pair, 6000);
    assert_eq!(by_tcp(), 19);
    assert_eq!(pair.client.reason(), Some(Reason::GraceExceeded));
    assert_eq!(pair.server.recv_all(), (b"to who waits by TCP".to_vec(), Some(NOTHING)));
}

/// The kernel would send it meanwhile, whatever the sender does; we only within its calls, and it makes none any more.
#[test]
fn what_tcp_does_not_take_at_once_is_left_where_it_can_be_read() {
    let pair = Pair::open();
    let all = bytes(251 * 100_000);
    let (mut sent, mut read) = (0, 0);
    // A stream that is read, so that the ring grows, and then is not.
    for _ in 0..400 {
        sent += pair.client.send(&all[sent % 251..][..1 << 16]).expect("room");
        let got = pair.server.recv(1 << 16).expect("bytes");
        read += got.len();
    }
    while let Ok(n) = pair.client.send(&all[sent % 251..][..1 << 16]) {
        sent += n;
    }
    let left = sent - read;
    assert!(left > 1 << 20, "{left} bytes are more than TCP takes at once");
    later(&pair, 0);
    later(&pair, 11_000);
    assert_eq!(pair.client.reason(), Some(Reason::GraceExceeded));
    pair.pass(Duration::from_secs(30));
    let mut rest = Vec::new();
    while rest.len() < left {
        let some = pair.server.recv(1 << 20).expect("bytes");
        rest.extend(some);
    }
    assert!(rest == all[read % 251..][..left]);
    assert_eq!(pair.server.recv(1), Err(NOTHING));
    pair.client.send(b"more").expect("room");
    assert_eq!(pair.server.recv(10), Ok(b"more".to_vec()));
}

#[test]
fn a_full_ring_is_borne_for_the_grace() {
    let pair = Pair::open();
    let mut sent = Vec::new();
    let part = bytes(251 * 200);
    let mut fill = || {
        while let Ok(n) = pair.client.send(&part[sent.len() % 251..]) {
            sent.extend_from_slice(&part[sent.len() % 251..][..n]);
        }
        sent.len()
    };
    let full = fill();
    assert_eq!(fill(), full);
    let mut most = full;
    for _ in 0..4 {
        pair.pass(Duration::from_secs(20));
        most = fill();
    }
    assert!(most > full, "TCP has room");
    let (mut read, mut rounds) = (Vec::new(), 0);
    while read.len() < most && rounds < 1000 {
        read.extend(pair.server.recv_all().0);
        pair.client.shows();
        rounds += 1;
    }
    assert!(read == bytes(most), "{} of {most}", read.len());
}
