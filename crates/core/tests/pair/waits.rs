//! poll, select and epoll.

use crate::epoll::Epoll;
use crate::{Pair, as_tcp, as_tcp_once, bytes, place};
use core::sync::atomic::Ordering;
use shunpike_core::{Errno, clock, conn, poll, sys, tls};
use shunpike_wire::Reason;
use std::time::Duration;

#[test]
fn poll_shows_what_tcp_would() {
    as_tcp(|pair| {
        let mut seen = vec![pair.server.shows()];
        pair.client.send(b"bytes").expect("room");
        seen.push(pair.server.shows());
        pair.server.recv(3).expect("bytes");
        seen.push(pair.server.shows());
        pair.server.recv(3).expect("bytes");
        seen.push(pair.server.shows());
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        seen.push(pair.server.shows());
        pair.server.shutdown(libc::SHUT_WR).expect("open");
        seen.push(pair.server.shows());
        seen
    });
}

#[test]
fn poll_ends_with_its_time() {
    as_tcp(|pair| pair.server.poll(libc::POLLIN, Some(2_000_000)));
}

#[test]
fn poll_looks_at_several_descriptors() {
    as_tcp(|pair| {
        pair.client.send(b"bytes").expect("room");
        let one = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [one(pair.client.fd, libc::POLLIN), one(pair.server.fd, libc::POLLIN), one(-1, 1)];
        let told = if poll::concerns_us(&fds) {
            poll::poll(&mut fds, None, core::ptr::null())
        } else {
            sys::poll(&mut fds, None, core::ptr::null())
        };
        (told, fds.map(|one| one.revents))
    });
}

#[test]
fn select_marks_who_is_ready() {
    let pair = Pair::open();
    pair.client.send(b"bytes").expect("room");
    let (mut read, mut write) = ([0u64; 16], [0u64; 16]);
    let bit = |fd: i32| (fd as usize / 64, 1u64 << (fd % 64));
    for fd in [pair.client.fd, pair.server.fd] {
        read[bit(fd).0] |= bit(fd).1;
        write[bit(fd).0] |= bit(fd).1;
    }
    let sets = [read.as_mut_ptr().cast(), write.as_mut_ptr().cast(), core::ptr::null_mut()];
    let most = pair.client.fd.max(pair.server.fd) + 1;
    // SAFETY: the sets are as large as descriptors can be here.
    let mut call = unsafe { poll::Select::new(poll::select_width(most), sets) }.expect("it concerns us");
    poll::poll(call.fds(), Some(0), core::ptr::null()).expect("it can be asked");
    assert_eq!(call.answer(), Ok(3));
    let is_set = |set: &[u64; 16], fd| set[bit(fd).0] & bit(fd).1 != 0;
    assert!(is_set(&read, pair.server.fd) && !is_set(&read, pair.client.fd));
    assert!(is_set(&write, pair.server.fd) && is_set(&write, pair.client.fd));
}

/// As the trampoline counts.
fn a_handler_runs() {
    tls::thread().handled.fetch_add(1, Ordering::Relaxed);
}

/// More than any wait here has.
fn time_is_over() {
    clock::pass(20_000_000);
}

const PATIENCE_NS: u64 = 10_000_000_000;

/// Bytes that nobody has heard of for nearly the grace, which is 10 s here: the next sleep ends soon, and its call's time is not over yet.
fn unheard(pair: &Pair) {
    pair.server.send(b"unheard").expect("room");
    // What rings for them has rung.
    assert_eq!(pair.server.poll(libc::POLLIN, Some(1_000_000)), 0);
    pair.pass(Duration::from_millis(9_950));
}

#[test]
fn a_handler_ends_a_wait_that_is_late() {
    let pair = Pair::open();
    let set = Epoll::new();
    set.add(pair.server.fd, libc::EPOLLIN).expect("a set");
    for by_set in [false, true] {
        unheard(&pair);
        place::after_a_sleep(|| {
            a_handler_runs();
            time_is_over();
        });
        let mut fds = [libc::pollfd { fd: pair.server.fd, events: libc::POLLIN, revents: 0 }];
        let polled = |fds: &mut [libc::pollfd]| poll::poll(fds, Some(PATIENCE_NS), core::ptr::null());
        let ended = if by_set { set.ends(PATIENCE_NS) } else { polled(&mut fds) };
        assert_eq!(ended, Err(Errno::INTR), "by a set: {by_set}");
        pair.client.recv(100).expect("bytes");
        assert!(pair.is_on_lanes());
    }
}

/// The kernel's poll has let signals in while it was in time: whoever is late owes it to those that came after that.
#[test]
fn a_masked_poll_that_is_late_lets_signals_in() {
    extern "C" fn nothing(_: i32) {}
    const SIGNAL: i32 = libc::SIGUSR2;
    let pair = Pair::open();
    unheard(&pair);
    // SAFETY: an empty set and a handler of ours; the signal is this thread's.
    let none = unsafe {
        let (mut none, mut one): (libc::sigset_t, libc::sigset_t) =
            (core::mem::zeroed(), core::mem::zeroed());
        libc::sigemptyset(&raw mut none);
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, SIGNAL);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, core::ptr::null_mut());
        libc::signal(SIGNAL, nothing as *const () as usize);
        none
    };
    place::after_a_sleep(|| {
        // SAFETY: it is kept back here, and has a handler.
        unsafe { libc::raise(SIGNAL) };
        time_is_over();
    });
    let mut fds = [libc::pollfd { fd: pair.server.fd, events: libc::POLLIN, revents: 0 }];
    assert_eq!(poll::poll(&mut fds, Some(PATIENCE_NS), &raw const none), Err(Errno::INTR));
}

/// Who they are does not matter for a comparison: each is told by its place in the pair.
fn by_place(pair: &Pair, told: Vec<(i32, i32)>) -> Vec<(bool, i32)> {
    let mut told: Vec<_> = told.into_iter().map(|(fd, events)| (fd == pair.server.fd, events)).collect();
    told.sort_unstable();
    told
}

#[test]
fn epoll_tells_of_levels() {
    as_tcp(|pair| {
        let set = Epoll::new();
        set.add(pair.server.fd, libc::EPOLLIN | libc::EPOLLRDHUP).expect("a set");
        set.add(pair.client.fd, libc::EPOLLIN | libc::EPOLLOUT).expect("a set");
        let mut seen = Vec::new();
        let mut look = || seen.push(by_place(pair, set.wait(1_000_000)));
        look();
        pair.client.send(b"bytes").expect("room");
        look();
        look();
        pair.server.recv(100).expect("bytes");
        look();
        pair.client.shutdown(libc::SHUT_WR).expect("open");
        look();
        seen
    });
}

#[test]
fn epoll_tells_of_an_edge_once() {
    as_tcp(|pair| {
        let set = Epoll::new();
        set.add(pair.server.fd, libc::EPOLLIN | libc::EPOLLET).expect("a set");
        let mut seen = Vec::new();
        let mut look = || seen.push(by_place(pair, set.wait(0)));
        look();
        pair.client.send(b"bytes").expect("room");
        look();
        look();
        pair.client.send(b"more").expect("room");
        look();
        look();
        pair.server.recv(100).expect("bytes");
        look();
        seen
    });
}

#[test]
fn epoll_tells_once_and_is_armed_again() {
    as_tcp(|pair| {
        let set = Epoll::new();
        let wish = libc::EPOLLIN | libc::EPOLLONESHOT;
        set.add(pair.server.fd, wish).expect("a set");
        pair.client.send(b"bytes").expect("room");
        let first = [0, 1].map(|_| by_place(pair, set.wait(0)));
        set.ctl(libc::EPOLL_CTL_MOD, pair.server.fd, wish).expect("a set");
        let second = [0, 1].map(|_| by_place(pair, set.wait(0)));
        set.ctl(libc::EPOLL_CTL_DEL, pair.server.fd, 0).expect("a set");
        (first, second, set.wait(0), set.ctl(libc::EPOLL_CTL_DEL, pair.server.fd, 0))
    });
}

#[test]
fn epoll_refuses_what_the_kernel_refuses() {
    as_tcp(|pair| {
        let set = Epoll::new();
        let fd = pair.server.fd;
        let calls = [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL, libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_ADD, 77];
        calls.map(|op| set.ctl(op, fd, libc::EPOLLIN))
    });
}

#[test]
fn epoll_tells_a_writer_of_room() {
    as_tcp(|pair| {
        let set = Epoll::new();
        set.add(pair.client.fd, libc::EPOLLOUT | libc::EPOLLET).expect("a set");
        let first = set.wait(0).len();
        while pair.client.send(&bytes(100_000)).is_ok() {}
        let full = set.wait(0).len();
        pair.server.recv_all();
        (first, full, set.wait(1_000_000_000).len())
    });
}

#[test]
fn a_closed_descriptor_leaves_its_sets() {
    as_tcp_once(|pair| {
        let set = Epoll::new();
        set.add(pair.server.fd, libc::EPOLLIN).expect("a set");
        pair.client.send(b"bytes").expect("room");
        pair.server.close();
        set.wait(0).len()
    });
}

#[test]
fn a_set_follows_a_connection_to_lanes_and_back() {
    let pair = Pair::watched();
    let set = Epoll::new();
    for end in [&pair.client, &pair.server] {
        set.add(end.fd, libc::EPOLLIN).expect("a set");
    }
    // Without the broker no lane opens.
    let talk = |with_broker: bool| {
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            from.send(b"message").expect("room");
            assert_eq!(set.wait(1_000_000_000), [(to.fd, libc::EPOLLIN)]);
            assert_eq!(to.recv(100).as_deref(), Ok(&b"message"[..]));
            assert_eq!(set.wait(0), []);
            if with_broker {
                pair.pump();
            }
        }
    };
    for _ in 0..4 {
        for _ in 0..64 {
            talk(true);
            if pair.is_on_lanes() {
                break;
            }
        }
        assert!(pair.is_on_lanes());
        conn::revoke(pair.client.conn(), pair.client.fd, Reason::Revoked);
        (0..4).for_each(|_| talk(false));
        assert!(pair.is_on_tcp());
        pair.pass(Duration::from_secs(10));
    }
}

#[test]
fn a_set_in_a_set_is_watched_by_tcp() {
    let pair = Pair::open();
    let (inner, outer) = (Epoll::new(), Epoll::new());
    inner.add(pair.server.fd, libc::EPOLLIN).expect("a set");
    outer.add(inner.fd, libc::EPOLLIN).expect("a set");
    pair.client.send(b"bytes").expect("room");
    assert_eq!(outer.wait(1_000_000_000), [(inner.fd, libc::EPOLLIN)]);
    assert_eq!(inner.wait(0), [(pair.server.fd, libc::EPOLLIN)]);
}

#[test]
fn a_reader_that_waits_is_woken_by_another_thread() {
    as_tcp(|pair| {
        let (client, server) = (&pair.client, &pair.server);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| server.recv_with(100, 0));
            // It may be asleep by then, or not: both must do.
            std::thread::sleep(Duration::from_millis(3));
            client.send(b"wake up").expect("room");
            reader.join().expect("it ends in peace")
        })
    });
}

#[test]
fn a_writer_that_waits_for_room_is_woken_by_the_reader() {
    as_tcp(|pair| {
        let (client, server, all) = (&pair.client, &pair.server, bytes(20_000_000));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| client.send_with(&all, 0));
            let mut read = Vec::new();
            while read.len() < all.len() {
                server.poll(libc::POLLIN, Some(1_000_000_000));
                read.extend(server.recv_all().0);
            }
            assert!(read == all);
            writer.join().expect("it ends in peace")
        })
    });
}

#[test]
fn a_set_that_sleeps_is_woken_by_another_thread() {
    as_tcp(|pair| {
        let set = Epoll::new();
        set.add(pair.server.fd, libc::EPOLLIN | libc::EPOLLET).expect("a set");
        let (client, place) = (&pair.client, pair.server.fd);
        for _ in 0..5 {
            let told = std::thread::scope(|scope| {
                let waits = scope.spawn(|| set.wait(5_000_000_000));
                std::thread::sleep(Duration::from_millis(2));
                client.send(b"wake up").expect("room");
                waits.join().expect("it ends in peace")
            });
            assert_eq!(told, [(place, libc::EPOLLIN)]);
            assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"wake up"[..]));
        }
    });
}

#[test]
fn a_poll_that_sleeps_is_woken_by_another_thread() {
    as_tcp(|pair| {
        let (client, server) = (&pair.client, &pair.server);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| server.poll(libc::POLLIN, Some(5_000_000_000)));
            std::thread::sleep(Duration::from_millis(2));
            client.send(b"wake up").expect("room");
            waits.join().expect("it ends in peace")
        })
    });
}

#[test]
fn a_write_that_waits_goes_on_by_tcp_when_its_lane_ends() {
    let pair = Pair::open();
    let (client, server, all) = (&pair.client, &pair.server, bytes(8_000_000));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.send_with(&all, 0));
        let (mut read, mut is_revoked) = (Vec::new(), false);
        while read.len() < all.len() {
            server.poll(libc::POLLIN, Some(1_000_000_000));
            read.extend(server.recv(300_000).unwrap_or_default());
            if read.len() > 2_000_000 && !is_revoked {
                is_revoked = true;
                conn::revoke(server.conn(), server.fd, Reason::Revoked);
            }
        }
        assert!(read == all);
        assert_eq!(writer.join().expect("it ends in peace"), Ok(all.len()));
    });
}
