//! How a connection ends.

use crate::{NOTHING, Pair, as_tcp, as_tcp_once};

#[test]
fn the_end_of_a_stream_comes_behind_its_bytes() {
    as_tcp(|pair| {
        pair.client.send(b"the last").expect("room");
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        (pair.server.recv_all(), pair.server.shows(), pair.client.send(b"more"))
    });
}

#[test]
fn the_other_direction_goes_on_after_it() {
    as_tcp(|pair| {
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        let end = pair.server.recv_all();
        (end, pair.server.send(b"an answer"), pair.client.recv_all())
    });
}

#[test]
fn unread_bytes_at_close_reset_the_connection() {
    as_tcp_once(|pair| {
        pair.client.send(b"unread").expect("room");
        pair.server.close();
        (pair.client.recv(10), pair.client.send(b"more"))
    });
}

#[test]
fn bytes_of_a_closed_end_are_read_to_their_end() {
    as_tcp_once(|pair| {
        pair.client.send(b"a last word").expect("room");
        pair.client.close();
        (pair.server.recv_all(), pair.server.shows())
    });
}

#[test]
fn a_second_descriptor_keeps_the_connection() {
    as_tcp_once(|pair| {
        let other = pair.client.dup();
        pair.client.close();
        pair.server.send(b"still there").expect("room");
        let read = other.recv_all();
        other.close();
        (read, pair.server.recv_all())
    });
}

#[test]
fn who_has_shut_down_its_reading_reads_what_came_before() {
    as_tcp(|pair| {
        pair.server.send(b"in time").expect("room");
        pair.client.shutdown(libc::SHUT_RD).expect("open");
        (pair.client.recv_all(), pair.client.send(b"to the server"), pair.server.recv_all())
    });
}

#[test]
fn both_directions_are_shut_down_at_once() {
    as_tcp(|pair| {
        pair.client.send(b"the last").expect("room");
        pair.client.shutdown(libc::SHUT_RDWR).expect("open");
        (pair.server.recv_all(), pair.client.recv_all(), pair.client.send(b"more"))
    });
}

#[test]
fn both_streams_end_one_after_the_other() {
    as_tcp_once(|pair| {
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        let end = pair.server.recv_all();
        pair.server.send(b"goodbye").expect("room");
        pair.server.close();
        (end, pair.client.recv_all(), pair.client.recv_all())
    });
}

#[test]
fn a_closed_connection_leaves_its_memory_to_the_next() {
    for _ in 0..20 {
        let pair = Pair::open();
        pair.client.send(b"unread").expect("room");
    }
    let pair = Pair::open();
    assert_eq!(pair.server.recv(100), Err(NOTHING), "nothing of an earlier connection");
}
