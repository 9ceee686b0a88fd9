//! What a set tells of a connection on lanes, by a real socket in a real set.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::Ordering;

use shunpike_shm::arena::{Arena, Block};
use shunpike_shm::pages::CQS;

use super::regs::{CONTROL, find};
use super::{EDGE, ONESHOT, SETS_AT, Set, WAIT, ctl, kernels, manage, outer, own, wait};
use crate::conn::phase;
use crate::table::{self, Conn, Entry};
use crate::{link, process, session, sys};

struct Watched {
    set: &'static Set,
    epoll: OwnedFd,
    socket: TcpStream,
    peer: TcpStream,
    block: &'static Block,
}

impl Watched {
    /// A connection that waits for `events`, in the set of this place, and has come on a lane there.
    fn new(place: u32, events: u32) -> Self {
        let watched = Self::on_tcp(place, events);
        manage(Conn::new(watched.block), watched.socket.as_raw_fd());
        watched.told();
        assert_eq!(watched.told(), None, "what stood at first is told once");
        watched
    }

    /// The same, before it comes on a lane.
    fn on_tcp(place: u32, events: u32) -> Self {
        static TABLE: Once = Once::new();
        TABLE.call_once(|| assert!(table::init(), "a table of descriptors"));
        let set = &SETS_AT[SETS_AT.len() - 1 - place as usize];
        // SAFETY: a fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        set.epfd.store(epoll.as_raw_fd(), Ordering::Relaxed);
        set.pid.store(process::pid(), Ordering::Relaxed);
        // The doorbell is there.
        set.cq.store(1, Ordering::Relaxed);
        // It has been waited for.
        set.waits.fetch_add(WAIT, Ordering::Relaxed);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listening socket");
        let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (peer, fd) = (listener.accept().expect("its other end").0, socket.as_raw_fd());
        let arena = Box::leak(Box::new(Arena::create(1).expect("an arena")));
        let block = arena.allocate().expect("a block");
        {
            let _session = session::lock();
            let link = link::enter(u32::MAX, 1 + place, 0, 0, [-1; CQS]).expect("a link");
            link::join(link, block, 3);
        }
        table::set(epoll.as_raw_fd(), Entry::Set(set));
        table::set(fd, Entry::Conn(Conn::new(block)));
        let watched = Self { set, epoll, socket, peer, block };
        watched.change(libc::EPOLL_CTL_ADD, events);
        watched
    }

    fn change(&self, op: i32, events: u32) {
        let event = libc::epoll_event { events, u64: 7 };
        ctl(self.epoll.as_raw_fd(), op, self.socket.as_raw_fd(), Some(event))
            .expect("ours")
            .expect("changed");
    }

    /// A byte has come.
    fn byte(&mut self) {
        std::io::Write::write_all(&mut self.peer, b"b").expect("written");
        while sys::poll_now(self.socket.as_raw_fd(), libc::POLLIN) == 0 {
            std::thread::yield_now();
        }
    }

    /// The events that a wait tells of now.
    fn told(&self) -> Option<u32> {
        let mut out = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let n = wait(self.set, self.epoll.as_raw_fd(), &mut out, Some(0), core::ptr::null()).expect("waited");
        assert!(n <= 1, "one connection is told of once");
        (n == 1).then_some(out[0].events)
    }

    /// The kernel tells of our entry, whatever is new.
    fn wake(&self) {
        let (_, reg) = {
            let _control = CONTROL.lock();
            find(self.set, self.socket.as_raw_fd()).expect("it is there")
        };
        let (events, u64) = reg.entry.get().expect("it is ours");
        let mut event = libc::epoll_event { events, u64 };
        let fd = self.socket.as_raw_fd();
        sys::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, Some(&mut event)).expect("changed");
    }

    fn end(&self) {
        self.peer.shutdown(Shutdown::Write).expect("shut down");
        while sys::poll_now(self.socket.as_raw_fd(), libc::POLLRDHUP) == 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        super::forget(self.socket.as_raw_fd());
        table::set(self.socket.as_raw_fd(), Entry::None);
        table::set(self.epoll.as_raw_fd(), Entry::None);
        let _session = session::lock();
        link::part(self.block);
        self.set.cq.store(0, Ordering::Relaxed);
    }
}

const IN_OUT_RDHUP: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;

/// tcp_fin() and tcp_data_ready() both wake who waits, and a wait may come in between (net/ipv4/tcp_input.c).
#[test]
fn the_end_that_the_kernel_tells_of_twice_is_told_once() {
    let watched = Watched::new(1, IN_OUT_RDHUP | EDGE);
    watched.end();
    assert_eq!(watched.told().expect("the end") & IN_OUT_RDHUP, IN_OUT_RDHUP);
    for _ in 0..2 {
        watched.wake();
        assert_eq!(watched.told(), None);
    }
}

#[test]
fn room_after_the_end_is_told_to_who_found_none() {
    let watched = Watched::new(2, IN_OUT_RDHUP | EDGE);
    watched.end();
    watched.told().expect("the end");
    watched.block.starved.fetch_add(1, Ordering::Relaxed);
    watched.wake();
    assert_eq!(watched.told().expect("room") & IN_OUT_RDHUP, IN_OUT_RDHUP);
}

/// A server that has read to the end, and goes on to write what TCP does not take at once: nobody counts that any more.
#[test]
fn room_after_the_end_is_told_off_the_lanes_too() {
    use std::io::Write;
    let mut watched = Watched::new(6, IN_OUT_RDHUP | EDGE);
    watched.end();
    watched.told().expect("the end");
    watched.block.phase.store(phase::OPEN, Ordering::Relaxed);
    super::restore(Conn::new(watched.block), || ());
    watched.socket.set_nonblocking(true).expect("nonblocking");
    let lump = [0; 1 << 16];
    while watched.socket.write(&lump).is_ok() {}
    assert_eq!(watched.told(), None, "there is no room");
    let mut sink = vec![0; 1 << 20];
    while sys::poll_now(watched.socket.as_raw_fd(), libc::POLLOUT) == 0 {
        std::io::Read::read(&mut watched.peer, &mut sink).expect("read");
    }
    assert_ne!(watched.told().expect("room") & libc::EPOLLOUT as u32, 0);
}

/// The kernel tells of the end twice there, too.
#[test]
fn the_end_is_told_once_off_the_lanes_too() {
    let watched = Watched::new(7, IN_OUT_RDHUP | EDGE);
    watched.end();
    watched.told().expect("the end");
    watched.block.phase.store(phase::OPEN, Ordering::Relaxed);
    super::restore(Conn::new(watched.block), || ());
    watched.wake();
    assert_eq!(watched.told(), None);
}

#[test]
fn a_reset_after_the_end_is_told() {
    let watched = Watched::new(3, IN_OUT_RDHUP | EDGE);
    watched.end();
    watched.told().expect("the end");
    watched.socket.shutdown(Shutdown::Write).expect("shut down");
    assert_ne!(watched.told().expect("both directions are shut") & libc::EPOLLHUP as u32, 0);
}

#[test]
fn bytes_are_no_edge_for_who_asks_for_room_only() {
    use std::io::Write;
    let mut watched = Watched::new(4, libc::EPOLLOUT as u32 | EDGE);
    watched.peer.write_all(b"a").expect("sent");
    while sys::poll_now(watched.socket.as_raw_fd(), libc::POLLIN) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(watched.told(), None);
    watched.block.starved.fetch_add(1, Ordering::Relaxed);
    watched.wake();
    watched.told().expect("room");
    watched.end();
    watched.told().expect("the end is told to everybody");
}

/// What stands is told by the kernel where it gets the program's own entry, as if it were new.
#[test]
fn a_handshake_that_fails_late_tells_of_nothing() {
    let watched = Watched::new(5, IN_OUT_RDHUP | EDGE);
    watched.block.phase.store(phase::SHAKING, Ordering::Relaxed);
    super::restore(Conn::new(watched.block), || ());
    assert_eq!(watched.told(), None);
    watched.end();
    assert_eq!(watched.told(), Some(IN_OUT_RDHUP));
    assert_eq!(watched.told(), None);
}

const IN_ONCE: u32 = libc::EPOLLIN as u32 | ONESHOT;

/// A thread has the event of a one-shot from the kernel when another one brings the connection on a lane.
#[test]
fn a_oneshot_that_fires_as_its_lane_opens_is_told_once() {
    let mut watched = Watched::on_tcp(8, IN_ONCE);
    watched.byte();
    let mut out = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let (wait, within) = kernels(watched.set).expect("no lane is in the set");
    assert_eq!(sys::epoll_wait(watched.epoll.as_raw_fd(), &mut out, 0, core::ptr::null()), Ok(1));
    drop(within);
    manage(Conn::new(watched.block), watched.socket.as_raw_fd());
    let told = wait.end(watched.set, &mut out[..1]).map_or_else(|| watched.told(), |_| Some(out[0].events));
    assert_ne!(told.expect("the byte") & libc::EPOLLIN as u32, 0);
    assert_eq!(watched.told(), None);
}

/// One that somebody was told of past the hooks before that is not told again.
#[test]
fn a_oneshot_that_has_fired_past_the_hooks_is_not_told() {
    let mut watched = Watched::on_tcp(9, IN_ONCE);
    watched.byte();
    let mut out = [libc::epoll_event { events: 0, u64: 0 }; 4];
    assert_eq!(sys::epoll_wait(watched.epoll.as_raw_fd(), &mut out, 0, core::ptr::null()), Ok(1));
    manage(Conn::new(watched.block), watched.socket.as_raw_fd());
    assert_eq!(watched.told(), None);
    watched.change(libc::EPOLL_CTL_MOD, IN_ONCE);
    assert_ne!(watched.told().expect("the byte") & libc::EPOLLIN as u32, 0);
}

/// Parent and child have the set, and each may arm what the other was told of.
#[test]
fn a_oneshot_that_another_process_arms_is_told() {
    let mut watched = Watched::on_tcp(10, IN_ONCE);
    watched.byte();
    for _ in 0..2 {
        assert_ne!(watched.told().expect("the byte") & libc::EPOLLIN as u32, 0);
        assert_eq!(watched.told(), None);
        watched.wake();
    }
}

/// A child is told of what its parent has in the set since they parted.
#[test]
fn what_another_process_has_in_the_set_is_told() {
    let mut watched = Watched::on_tcp(11, IN_ONCE);
    watched.set.pid.store(1, Ordering::Relaxed);
    own(watched.set);
    super::forget(watched.socket.as_raw_fd());
    watched.byte();
    assert_ne!(watched.told().expect("the byte") & libc::EPOLLIN as u32, 0);
}

/// Who asks for room only is told of the end, by an edge: also where our entry asks for bytes, as the program did before.
#[test]
fn the_end_is_told_to_who_asks_for_room() {
    let out = libc::EPOLLOUT as u32 | EDGE;
    for (place, before) in [(12, out), (13, out | libc::EPOLLIN as u32)] {
        let watched = Watched::new(place, before);
        watched.change(libc::EPOLL_CTL_MOD, out);
        assert_ne!(watched.told().expect("room") & libc::EPOLLOUT as u32, 0);
        assert_eq!(watched.told(), None);
        watched.end();
        assert_ne!(watched.told().expect("the end") & libc::EPOLLOUT as u32, 0);
        assert_eq!(watched.told(), None);
    }
}

/// The kicker, made without the share of descriptors that is ours in a program.
fn kicker() -> i32 {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let made = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        outer::KICKER.store(made.into_raw_fd(), Ordering::Relaxed);
    });
    outer::KICKER.load(Ordering::Relaxed)
}

/// The kicker waits for another thread, for as long as that takes. An array of one has it before, or behind, what else there is.
#[test]
fn a_look_does_not_wait_for_who_is_kicked() {
    kicker();
    let mut watched = Watched::on_tcp(14, libc::EPOLLIN as u32);
    let (_, within) = kernels(watched.set).expect("no lane is in the set");
    manage(Conn::new(watched.block), watched.socket.as_raw_fd());
    let told = |watched: &Watched| {
        let mut out = [libc::epoll_event { events: 0, u64: 0 }; 1];
        wait(watched.set, watched.epoll.as_raw_fd(), &mut out, Some(0), core::ptr::null()).expect("waited")
    };
    assert_eq!([told(&watched), told(&watched)], [0, 0]);
    watched.byte();
    assert_eq!([told(&watched), told(&watched)], [1, 1]);
    assert!(!outer::is_lost(watched.set), "it was not waited for");
    drop(within);
}

/// Its lanes are about to go, as there were no descriptors, and nobody rings meanwhile.
#[test]
fn a_sleep_without_an_outer_instance_looks_again() {
    let watched = Watched::new(15, libc::EPOLLOUT as u32 | EDGE);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut out = [libc::epoll_event { events: 0, u64: 0 }; 4];
            let most = Some(10_000_000_000);
            let (begin, epfd) = (std::time::Instant::now(), watched.epoll.as_raw_fd());
            let n = wait(watched.set, epfd, &mut out, most, core::ptr::null()).expect("waited");
            (n, begin.elapsed())
        });
        while watched.set.list.lock().sleepers == 0 {
            std::thread::yield_now();
        }
        watched.block.starved.fetch_add(1, Ordering::Relaxed);
        super::touch(Conn::new(watched.block));
        let (n, slept) = sleeper.join().expect("it has woken");
        assert!(n == 1 && slept.as_secs() < 5, "told of {n} after {slept:?}");
    });
}

#[test]
fn a_oneshot_that_asks_for_errors_only_is_told_of_them() {
    let watched = Watched::on_tcp(16, ONESHOT);
    manage(Conn::new(watched.block), watched.socket.as_raw_fd());
    assert_eq!(watched.told(), None);
    watched.end();
    watched.socket.shutdown(Shutdown::Write).expect("shut down");
    assert_ne!(watched.told().expect("both directions are shut") & libc::EPOLLHUP as u32, 0);
}

/// A child that comes to use its parent's set does not end what the parent's threads have yet to hear of.
#[test]
fn a_child_leaves_its_parents_kicker_alone() {
    let watched = Watched::on_tcp(17, libc::EPOLLIN as u32);
    let event = &mut libc::epoll_event { events: outer::KICK, u64: 7 };
    let epfd = watched.epoll.as_raw_fd();
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, kicker(), Some(event)).expect("added");
    watched.set.outer.kicked_at.store(1, Ordering::Relaxed);
    watched.set.pid.store(1, Ordering::Relaxed);
    assert_eq!([watched.told(), watched.told()], [None; 2]);
    assert_ne!(sys::poll_now(epfd, libc::POLLIN), 0, "the kicker is there");
}
