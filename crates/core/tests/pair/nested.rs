//! Sets that somebody waits for have no lanes: what a lane had, TCP would have told.

use crate::epoll::Epoll;
use crate::{Pair, as_tcp};
use std::time::Duration;

/// What both sets tell of, with reads of so many bytes between.
fn told_between(pair: &Pair, inner: &Epoll, outer: &Epoll, reads: &[usize]) -> Vec<usize> {
    let mut seen = Vec::new();
    for &n in reads {
        seen.push(outer.wait(0).len());
        seen.push(outer.wait(0).len());
        seen.push(inner.wait(0).len());
        seen.push(outer.wait(0).len());
        seen.push(pair.server.recv(n).map_or(0, |bytes| bytes.len()));
    }
    seen.extend([outer.wait(0).len(), inner.wait(0).len(), outer.wait(0).len()]);
    seen
}

/// Whether the outer set tells of the inner one, that of the server, and there is something to read; and then of nothing.
fn told(pair: &Pair, inner: &Epoll, outer: &Epoll) -> Vec<usize> {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let by_outer = outer.wait(300_000_000);
        assert!(by_outer.iter().all(|&(fd, _)| fd == inner.fd));
        let by_inner = inner.wait(0);
        assert!(by_inner.iter().all(|&one| one == (pair.server.fd, libc::EPOLLIN)));
        seen.extend([by_outer.len(), by_inner.len(), pair.server.recv(100).map_or(0, |bytes| bytes.len())]);
    }
    seen
}

#[test]
fn bytes_unread_are_told_of_where_the_connection_comes_into_a_set_that_is_waited_for() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        assert_eq!(outer.wait(0), []);
        pair.client.send(b"bytes").expect("room");
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        told(pair, &inner, &outer)
    });
}

#[test]
fn bytes_unread_are_told_of_where_its_set_comes_to_be_waited_for() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        assert_eq!(inner.wait(0), []);
        pair.client.send(b"bytes").expect("room");
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        told(pair, &inner, &outer)
    });
}

#[test]
fn bytes_unread_are_told_of_where_its_set_was_looked_at_before() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        assert_eq!(inner.wait(0).len(), 1);
        assert_eq!(inner.wait(0).len(), 1);
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        told(pair, &inner, &outer)
    });
}

#[test]
fn what_a_read_leaves_is_told_of_again_where_the_peer_waits() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        std::thread::scope(|scope| {
            let client = &pair.client;
            let waits = scope.spawn(|| client.poll(libc::POLLIN, Some(5_000_000_000)));
            // It may be asleep by then, or not: both must do.
            std::thread::sleep(Duration::from_millis(20));
            outer.add(inner.fd, libc::EPOLLIN).expect("a set");
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(outer.wait(300_000_000).len());
                seen.push(inner.wait(0).len());
                seen.push(pair.server.recv(2).map_or(0, |bytes| bytes.len()));
            }
            seen.push(outer.wait(0).len());
            pair.server.send(b"answer").expect("room");
            assert_eq!(waits.join().expect("it ends in peace"), libc::POLLIN);
            seen
        })
    });
}

#[test]
fn what_a_read_leaves_is_told_of_again_where_the_peer_is_silent() {
    for reads in [[2, 2, 1], [2, 2, 100], [1, 1, 3]] {
        as_tcp(|pair| {
            let (inner, outer) = (Epoll::new(), Epoll::new());
            inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
            pair.client.send(b"bytes").expect("room");
            assert_eq!(inner.wait(0).len(), 1);
            outer.add(inner.fd, libc::EPOLLIN).expect("a set");
            let mut seen = told_between(pair, &inner, &outer, &reads);
            pair.client.send(b"more").expect("room");
            seen.extend([outer.wait(300_000_000).len(), inner.wait(0).len()]);
            seen.extend(told_between(pair, &inner, &outer, &[2, 2]));
            seen
        });
    }
}

#[test]
fn what_a_read_leaves_is_told_of_again_of_a_connection_that_comes_later() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        told_between(pair, &inner, &outer, &[2, 2, 1])
    });
}

#[test]
fn a_registration_in_a_set_that_is_waited_for_is_changed_while_bytes_are_unread() {
    as_tcp(|pair| {
        let (inner, outer, fd) = (Epoll::new(), Epoll::new(), pair.server.fd);
        inner.add(fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        let mut seen = vec![outer.wait(0).len()];
        for (op, events) in [
            (libc::EPOLL_CTL_DEL, 0),
            (libc::EPOLL_CTL_ADD, libc::EPOLLIN),
            (libc::EPOLL_CTL_MOD, libc::EPOLLPRI),
            (libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLONESHOT),
            (libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLONESHOT),
            (libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLET),
            (libc::EPOLL_CTL_MOD, libc::EPOLLOUT),
            (libc::EPOLL_CTL_MOD, libc::EPOLLIN),
        ] {
            inner.ctl(op, fd, events).expect("it is there");
            seen.extend([outer.wait(0).len(), inner.wait(0).len(), outer.wait(0).len(), inner.wait(0).len()]);
        }
        seen.extend(told_between(pair, &inner, &outer, &[3, 2]));
        seen
    });
}

/// Who waits for one event at a time hears of both connections.
#[test]
fn what_stands_in_a_set_leaves_room_for_others() {
    as_tcp(|pair| {
        let (inner, outer, fd) = (Epoll::new(), Epoll::new(), pair.server.fd);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let pipe = std::os::fd::AsRawFd::as_raw_fd(&reader);
        inner.add(fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        inner.add(pipe, libc::EPOLLIN).expect("a set");
        std::io::Write::write_all(&mut &writer, b"a").expect("room");
        let mut seen = [inner.first(0), inner.first(0)].map(|told| told.map(|told| told.0 == fd));
        seen.sort_unstable();
        inner.ctl(libc::EPOLL_CTL_DEL, fd, 0).expect("it is there");
        (seen, inner.first(0).map(|told| told.0 == pipe))
    });
}

#[test]
fn a_quiet_set_that_comes_to_be_waited_for_tells_nothing() {
    as_tcp(|pair| {
        let (inner, outer) = (Epoll::new(), Epoll::new());
        inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        let mut seen = vec![inner.wait(0).len()];
        assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"bytes"[..]));
        outer.add(inner.fd, libc::EPOLLIN).expect("a set");
        seen.extend([outer.wait(0).len(), inner.wait(0).len(), outer.wait(0).len()]);
        // The peer's part of it.
        pair.client.send(b"more").expect("room");
        seen.extend([
            outer.wait(300_000_000).len(),
            inner.wait(0).len(),
            pair.server.recv(100).map_or(0, |got| got.len()),
        ]);
        seen.extend([outer.wait(0).len(), inner.wait(0).len()]);
        seen
    });
}

#[test]
fn who_sleeps_in_either_set_is_told_of_a_connection_that_comes_with_bytes_unread() {
    const LONG: u64 = 2_000_000_000;
    for events in [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLET, libc::EPOLLIN | libc::EPOLLONESHOT] {
        for sleeps_in_outer in [false, true] {
            as_tcp(|pair| {
                let (inner, outer) = (Epoll::new(), Epoll::new());
                outer.add(inner.fd, libc::EPOLLIN | libc::EPOLLET).expect("a set");
                pair.client.send(b"bytes").expect("room");
                std::thread::scope(|scope| {
                    let set = if sleeps_in_outer { &outer } else { &inner };
                    let sleeps = scope.spawn(|| set.wait(LONG).len());
                    std::thread::sleep(Duration::from_millis(30));
                    inner.add(pair.server.fd, events).expect("a set");
                    sleeps.join().expect("it ends in peace")
                })
            });
        }
    }
}
