//! The pair of `tests/pair` in a process that wants its lanes from the first byte on (`--eager`).

#[allow(dead_code, reason = "what the pair's own tests call besides")]
#[path = "../pair/broker.rs"]
mod broker;
#[allow(dead_code, reason = "as above")]
#[path = "../pair/end.rs"]
mod end;
#[allow(dead_code, reason = "as above")]
#[path = "../pair/place.rs"]
mod place;

use end::End;
use place::{Pair, alone};
use rustix::net::{AddressFamily, SocketType};
use shunpike_core::{conn, eager};
use shunpike_shm::lifecycle::Phase;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// As `--eager` is given.
const EAGER: bool = true;

/// A new connection that core watches, and of whose making the broker hears: as connect(), listen() and accept() have it in a
/// process that wants its lanes early.
fn announced() -> Pair {
    let broker = alone();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("its address");
    eager::listening(listener.as_raw_fd());
    broker.turn();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    eager::connecting(socket.as_raw_fd(), at);
    rustix::net::connect(&socket, &at).expect("a connection");
    conn::watch(socket.as_raw_fd(), false, false, true);
    eager::accepting(listener.as_raw_fd());
    let (server, _) = listener.accept().expect("its other end");
    conn::watch(server.as_raw_fd(), true, false, false);
    eager::closing(listener.as_raw_fd());
    let pair = Pair { client: End::new(socket.into()), server: End::new(server), broker };
    pair.pump();
    pair
}

#[test]
fn the_first_byte_goes_by_the_lane() {
    let pair = Pair::watched();
    pair.pump();
    assert_eq!(pair.state(), (Phase::Open, Phase::Open));
    pair.client.send(b"first").expect("room");
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"first"[..]));
    pair.server.send(b"second").expect("room");
    assert_eq!(pair.client.recv(100).as_deref(), Ok(&b"second"[..]));
    assert!(pair.is_on_lanes());
    assert_eq!(pair.client.carried(), 11);
}

#[test]
fn a_server_s_first_byte_does_so_too() {
    let pair = Pair::watched();
    pair.pump();
    pair.server.send(b"welcome").expect("room");
    assert_eq!(pair.client.recv(100).as_deref(), Ok(&b"welcome"[..]));
    assert_eq!(pair.client.carried(), 7);
}

#[test]
fn a_client_waits_for_its_server_while_that_is_expected() {
    // The broker hears of both ends before they are connected.
    let pair = announced();
    assert_eq!(pair.state(), (Phase::Open, Phase::Open));
    pair.talk();
    assert!(pair.is_on_lanes());
}

#[test]
fn without_the_other_end_it_goes_by_tcp() {
    let pair = Pair::plain();
    pair.pass(Duration::from_secs(20));
    conn::watch(pair.client.fd, false, false, false);
    pair.pump();
    pair.client.send(b"first").expect("room");
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"first"[..]));
    assert!(pair.client.is_on_tcp());
}

/// While `call` waits in another thread, the broker is turned, and the other end is made known.
fn meanwhile<T: Send>(pair: &Pair, call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let call = scope.spawn(call);
        let mut is_known = false;
        while !call.is_finished() {
            pair.pump();
            std::thread::sleep(Duration::from_millis(1));
            if !is_known {
                is_known = true;
                conn::watch(pair.server.fd, true, false, false);
                pair.pump();
                pair.server.send(b"welcome").expect("room");
            }
        }
        call.join().expect("it ends in peace")
    })
}

/// A connection whose server's end core does not know of yet.
fn one_sided() -> Pair {
    let pair = Pair::plain();
    pair.pass(Duration::from_secs(20));
    conn::watch(pair.client.fd, false, false, false);
    pair
}

#[test]
fn a_read_waits_for_its_lane() {
    let pair = one_sided();
    let client = &pair.client;
    assert_eq!(meanwhile(&pair, || client.recv_with(100, 0)).as_deref(), Ok(&b"welcome"[..]));
}

#[test]
fn a_write_waits_for_its_lane_and_goes_by_tcp_where_none_comes() {
    let pair = one_sided();
    let client = &pair.client;
    assert_eq!(meanwhile(&pair, || client.send_with(b"hello", 0)), Ok(5));
    assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"hello"[..]));
}

#[test]
fn a_connect_that_fails_is_taken_back() {
    let pair = Pair::plain();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let at = listener.local_addr().expect("its address");
    let socket = TcpStream::connect(at).expect("a socket");
    eager::connecting(socket.as_raw_fd(), at);
    pair.pump();
    eager::not_connected(socket.as_raw_fd());
    eager::deferring(listener.as_raw_fd());
    eager::closing(listener.as_raw_fd());
    pair.pump();
}

#[test]
fn many_come_and_go() {
    for _ in 0..20 {
        let pair = announced();
        pair.client.send(b"question").expect("room");
        assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"question"[..]));
        pair.server.send(b"answer").expect("room");
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        assert_eq!(pair.client.recv(100).as_deref(), Ok(&b"answer"[..]));
    }
}

#[test]
fn an_eager_connection_closed_unused_leaves_nothing() {
    let pair = announced();
    let Pair { client, server, broker } = pair;
    client.close();
    server.close();
    drop(broker);
    let pair = announced();
    pair.talk();
}

#[test]
fn who_sleeps_in_the_kernel_as_nobody_was_expected_is_not_waited_for() {
    let pair = one_sided();
    pair.pump();
    let client = &pair.client;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| client.recv_with(100, 0));
        while client.conn().block.rx.inflight.load(Ordering::Relaxed) == 0 {
            pair.pump();
        }
        conn::watch(pair.server.fd, true, false, false);
        pair.pump();
        let begun = Instant::now();
        pair.server.send(b"welcome").expect("room");
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        assert_eq!(reader.join().expect("it ends in peace").as_deref(), Ok(&b"welcome"[..]));
    });
    // It hears of its peer now, and the lane opens.
    pair.pump();
    pair.talk();
    assert!(pair.is_on_lanes(), "{:?}", pair.state());
}
