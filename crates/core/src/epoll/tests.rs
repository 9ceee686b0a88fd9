//! What a set tells of a connection on lanes, by a real socket in a real set.

use shunpike_shm::lifecycle::Event;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::Ordering;

use shunpike_shm::arena::{Arena, Block, mode};
use shunpike_shm::pages::CQS;
use shunpike_wire::Reason;

use super::wait;
use crate::set::Set;
use crate::sets::refusal::{bars_managed, has_lost};
use crate::sets::regs::{CONTROL, find, tag};
use crate::sets::{EDGE, EXCLUSIVE, SETS_AT, bars, ctl, has_lanes, manage};
use crate::sys::refusing::refuse;
use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::{link, process, session, sys};

const ALL: u32 = EDGE | (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

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
        // The doorbell is there.
        watched.set.cq.store(1, Ordering::Relaxed);
        manage(Conn::new(watched.block), watched.socket.as_raw_fd());
        watched.told();
        assert_eq!(watched.told(), None, "what stood at first is told once");
        watched
    }

    /// One that is about to.
    fn on_tcp(place: u32, events: u32) -> Self {
        static TABLE: Once = Once::new();
        TABLE.call_once(|| assert!(table::init(), "a table of descriptors"));
        let set = &SETS_AT[SETS_AT.len() - 1 - place as usize];
        // SAFETY: a fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        set.epfd.store(epoll.as_raw_fd(), Ordering::Relaxed);
        set.pid.store(process::pid(), Ordering::Relaxed);
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
        let event = libc::epoll_event { events, u64: 7 };
        ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, Some(event)).expect("ours").expect("EPOLL_CTL_ADD");
        Self { set, epoll, socket, peer, block }
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
        let (index, reg) = {
            let _control = CONTROL.lock();
            find(self.set, self.socket.as_raw_fd()).expect("it is there")
        };
        let mut event = libc::epoll_event { events: ALL, u64: tag(index, reg.turn.get()) };
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
        crate::sets::forget(self.socket.as_raw_fd());
        table::set(self.socket.as_raw_fd(), Entry::None);
        table::set(self.epoll.as_raw_fd(), Entry::None);
        let _session = session::lock();
        link::part(self.block);
        self.set.cq.store(0, Ordering::Relaxed);
        self.set.refused.store(false, Ordering::Relaxed);
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
    watched.block.life.on(Event::Open);
    crate::sets::restore(Conn::new(watched.block), || ());
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
    watched.block.life.on(Event::Open);
    crate::sets::restore(Conn::new(watched.block), || ());
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
    watched.block.life.on(Event::Nominate);
    watched.block.life.on(Event::Match);
    crate::sets::restore(Conn::new(watched.block), || ());
    assert_eq!(watched.told(), None);
    watched.end();
    assert_eq!(watched.told(), Some(IN_OUT_RDHUP));
    assert_eq!(watched.told(), None);
}

/// `what`, in a thread to which the kernel refuses new entries of epoll sets.
fn without_new_entries(what: impl FnOnce() + Send) {
    let in_thread = || {
        refuse(libc::SYS_epoll_ctl, &[(1, libc::EPOLL_CTL_ADD as u32)], libc::ENOMEM);
        what();
    };
    std::thread::scope(|scope| scope.spawn(in_thread).join()).expect("no panic");
}

/// A set without the doorbell would not hear of its lanes: who waits for it would look all the time.
#[test]
fn a_set_that_gets_no_doorbell_has_no_lanes() {
    use std::io::Write;
    let mut watched = Watched::on_tcp(8, libc::EPOLLIN as u32);
    let (conn, fd) = (Conn::new(watched.block), watched.socket.as_raw_fd());
    assert_eq!(bars_managed(conn, fd), None);
    without_new_entries(|| manage(conn, fd));
    assert!(!has_lanes(watched.set) && watched.set.cq.load(Ordering::Relaxed) == 0);
    assert_eq!(bars_managed(conn, fd), Some(Reason::EpollSets));
    assert_eq!(bars(fd), Some(Reason::EpollSets), "nor is it asked for one again");
    watched.peer.write_all(b"a").expect("sent");
    while sys::poll_now(fd, libc::POLLIN) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(watched.told(), Some(libc::EPOLLIN as u32), "the kernel tells of it");
}

/// What is exclusive cannot be changed, only taken out and put in.
#[test]
fn an_exclusive_entry_is_put_in_as_soon_as_the_kernel_takes_it() {
    let asked = libc::EPOLLOUT as u32 | EXCLUSIVE;
    let watched = Watched::on_tcp(9, asked);
    let (conn, fd) = (Conn::new(watched.block), watched.socket.as_raw_fd());
    watched.set.cq.store(1, Ordering::Relaxed);
    without_new_entries(|| manage(conn, fd));
    assert!(!has_lanes(watched.set) && has_lost(watched.set));
    assert_eq!(bars_managed(conn, fd), Some(Reason::EpollSets));
    assert_eq!(watched.told(), Some(libc::EPOLLOUT as u32));
    assert!(!has_lost(watched.set));
    // The same as it comes back from a lane.
    watched.set.refused.store(false, Ordering::Relaxed);
    manage(conn, fd);
    assert!(has_lanes(watched.set));
    without_new_entries(|| crate::sets::restore(conn, || ()));
    assert!(has_lost(watched.set));
    assert_eq!(watched.told(), Some(libc::EPOLLOUT as u32));
    assert!(!has_lost(watched.set));
    // One that was taken out and not put in can be deleted, once.
    manage(conn, fd);
    let delete = || ctl(watched.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, None).expect("ours");
    without_new_entries(|| {
        crate::sets::restore(conn, || ());
        assert_eq!(delete(), Ok(()));
    });
    assert!(!has_lost(watched.set) && watched.told().is_none());
    assert_ne!(delete(), Ok(()));
}

/// The kernel would not tell of what the lane has, so that it is looked at meanwhile.
#[test]
fn an_exclusive_entry_of_a_lane_that_may_have_bytes_is_answered_from_here() {
    let watched = Watched::on_tcp(10, libc::EPOLLIN as u32 | EXCLUSIVE);
    let (conn, fd) = (Conn::new(watched.block), watched.socket.as_raw_fd());
    let comes = |mode| {
        let guard = watched.block.rx.lock(critical());
        guard.held().mode.store(guard.held(), mode, Ordering::Release);
    };
    watched.set.cq.store(1, Ordering::Relaxed);
    comes(mode::LANE);
    without_new_entries(|| manage(conn, fd));
    assert!(has_lanes(watched.set) && has_lost(watched.set));
    assert_eq!(bars_managed(conn, fd), Some(Reason::EpollSets));
    let is_in_kernel = || sys::poll_now(watched.epoll.as_raw_fd(), libc::POLLIN) != 0;
    assert!(!is_in_kernel());
    assert_eq!(watched.told(), None);
    assert!(has_lanes(watched.set) && !has_lost(watched.set), "it is in the set again, as ours");
    comes(mode::PLAIN);
    crate::sets::restore(conn, || ());
    assert!(!has_lanes(watched.set));
    std::io::Write::write_all(&mut &watched.peer, b"a").expect("sent");
    while !is_in_kernel() {
        std::thread::yield_now();
    }
    assert_eq!(watched.told(), Some(libc::EPOLLIN as u32), "as the program's");
}

/// Who waits for a set in which the doorbell was refused is told by the kernel, and looks now and then, until the lane is over.
#[test]
fn a_lane_that_may_have_bytes_is_answered_from_here_without_a_doorbell() {
    let watched = Watched::on_tcp(11, libc::EPOLLIN as u32);
    let (conn, fd) = (Conn::new(watched.block), watched.socket.as_raw_fd());
    let comes = |mode| {
        let guard = watched.block.rx.lock(critical());
        guard.held().mode.store(guard.held(), mode, Ordering::Release);
    };
    let is_told = || sys::poll_now(watched.epoll.as_raw_fd(), libc::POLLIN) != 0;
    comes(mode::LANE);
    assert!(!is_told());
    without_new_entries(|| manage(conn, fd));
    assert!(has_lanes(watched.set) && watched.set.cq.load(Ordering::Relaxed) == 0);
    assert!(is_told(), "who sleeps there wakes");
    assert_eq!(watched.told(), None);
    assert!(!is_told());
    comes(mode::PLAIN);
    crate::sets::restore(conn, || ());
    assert!(!has_lanes(watched.set) && !is_told());
}

/// A set of which nobody has seen a wait yet: its one-shots carry the program's own word.
#[test]
fn a_one_shot_that_has_fired_before_its_lane_came_is_not_told_again() {
    for (place, has_fired) in [(12, true), (13, false)] {
        let watched = Watched::on_tcp(place, (libc::EPOLLIN | libc::EPOLLONESHOT) as u32);
        std::io::Write::write_all(&mut &watched.peer, b"a").expect("sent");
        if has_fired {
            let mut out = [libc::epoll_event { events: 0, u64: 0 }];
            // SAFETY: room for one.
            let n = unsafe { libc::epoll_wait(watched.epoll.as_raw_fd(), out.as_mut_ptr(), 1, -1) };
            let libc::epoll_event { events, u64: word } = out[0];
            assert_eq!((n, events, word), (1, libc::EPOLLIN as u32, 7));
        }
        while sys::poll_now(watched.socket.as_raw_fd(), libc::POLLIN) == 0 {
            std::thread::yield_now();
        }
        watched.set.cq.store(1, Ordering::Relaxed);
        manage(Conn::new(watched.block), watched.socket.as_raw_fd());
        assert!(has_lanes(watched.set));
        let told = watched.told();
        assert_eq!(told, (!has_fired).then_some(libc::EPOLLIN as u32));
        assert_eq!(watched.told(), None);
    }
}

/// A child of a fork has used the set, and the connection there went back to TCP.
#[test]
fn what_another_process_has_the_kernel_tell_is_told_once() {
    let watched = Watched::new(14, libc::EPOLLIN as u32);
    watched.set.shared.store(true, Ordering::Relaxed);
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    let fd = watched.socket.as_raw_fd();
    sys::epoll_ctl(watched.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, Some(&mut event)).expect("changed");
    std::io::Write::write_all(&mut &watched.peer, b"a").expect("sent");
    while sys::poll_now(fd, libc::POLLIN) == 0 {
        std::thread::yield_now();
    }
    for _ in 0..3 {
        crate::sets::touch(Conn::new(watched.block));
        assert_eq!(watched.told(), Some(libc::EPOLLIN as u32), "once in each call");
    }
    watched.set.shared.store(false, Ordering::Relaxed);
}

/// What the kernel tells of, by its own word: events, and the data.
fn kernels_own(watched: &Watched) -> Option<(u32, u64)> {
    let mut out = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let n = sys::epoll_wait(watched.epoll.as_raw_fd(), &mut out, 0, core::ptr::null()).expect("waited");
    let [first, _] = out;
    (n > 0).then_some((first.events, first.u64))
}

#[test]
fn a_socket_that_is_dissolved_stays_in_its_set() {
    let watched = Watched::new(20, libc::EPOLLIN as u32 | libc::EPOLLRDHUP as u32);
    assert_eq!(kernels_own(&watched), None, "it is ours");
    crate::sets::staying(watched.socket.as_raw_fd());
    watched.end();
    let (events, data) = kernels_own(&watched).expect("the end, by the kernel");
    assert_eq!((events & libc::EPOLLRDHUP as u32, data), (libc::EPOLLRDHUP as u32, 7));
    // Twice is once, and one that is in no set has nothing to stay in.
    crate::sets::staying(watched.socket.as_raw_fd());
    crate::sets::staying(watched.peer.as_raw_fd());
    assert_eq!(kernels_own(&watched).map(|(_, data)| data), Some(7));
}

#[test]
fn a_set_is_asked_by_a_number_that_is_its_own() {
    let watched = Watched::new(21, IN_OUT_RDHUP | EDGE);
    let own = watched.epoll.as_raw_fd();
    assert_eq!(crate::sets::number_of(watched.set, own), Ok(own));
    // It has another name, which is not known for its first one yet.
    let other = watched.epoll.try_clone().expect("another name");
    table::set(other.as_raw_fd(), Entry::Set(watched.set));
    table::set(own, Entry::None);
    assert_eq!(crate::sets::number_of(watched.set, own), Ok(other.as_raw_fd()));
    table::set(other.as_raw_fd(), Entry::None);
    assert_eq!(crate::sets::number_of(watched.set, own), Err(rustix::io::Errno::BADF));
}

#[test]
fn an_entry_that_the_other_process_has_given_back_is_the_others() {
    let watched = Watched::new(22, libc::EPOLLIN as u32);
    let fd = watched.socket.as_raw_fd();
    let reg = {
        let _control = CONTROL.lock();
        find(watched.set, fd).expect("it is there").1
    };
    let is_others = || {
        let _control = CONTROL.lock();
        crate::sets::entries::is_others(reg)
    };
    assert!(!is_others(), "nobody else has it");
    watched.set.watched.store(true, Ordering::Relaxed);
    reg.forked.set(true);
    assert!(!is_others(), "the kernel has a tag of ours");
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    sys::epoll_ctl(watched.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, Some(&mut event)).expect("changed");
    assert!(is_others(), "the kernel has the program's word");
    reg.forked.set(false);
    watched.set.watched.store(false, Ordering::Relaxed);
}

#[test]
fn a_wait_of_libcs_is_counted_until_it_returns_and_begins_where_there_is_no_lane() {
    let watched = Watched::on_tcp(23, IN_OUT_RDHUP);
    let waits = super::kernels(watched.set).expect("it has no lanes");
    assert!(watched.set.has_waits_of_libc());
    watched.set.cq.store(1, Ordering::Relaxed);
    manage(Conn::new(watched.block), watched.socket.as_raw_fd());
    assert!(super::kernels(watched.set).is_none(), "it has one");
    super::wake_others(watched.set);
    waits.returned();
    assert!(!watched.set.has_waits_of_libc());
}

#[test]
fn a_call_blocks_as_it_began_to() {
    use crate::blocking::Blocking;
    let watched = Watched::new(24, IN_OUT_RDHUP | EDGE);
    let (block, fd) = (watched.block, watched.socket.as_raw_fd());
    let call = || Blocking::new(0, libc::SO_SNDTIMEO);
    let (mut began, mut later) = (call(), call());
    began.moved(block);
    table::set(fd, Entry::Conn(Conn::new(block)));
    crate::call::set_nonblock(fd, true);
    assert!(crate::call::is_told_nonblock(block));
    assert!(began.may_wait(block) && !later.may_wait(block), "the flag came under the first one");
    began.ask(Conn::new(block), fd).expect("it blocks");
    later.moved(block);
    assert!(!later.may_wait(block));
    // What the kernel says of a call that has moved nothing counts.
    watched.socket.set_nonblocking(true).expect("nonblocking");
    crate::call::set_nonblock(fd, false);
    let mut asked = call();
    assert!(asked.may_wait(block));
    assert_eq!(asked.ask(Conn::new(block), fd), Err(rustix::io::Errno::AGAIN));
    assert!(!asked.may_wait(block) && !crate::call::is_told_nonblock(block));
    assert!(!Blocking::new(libc::MSG_DONTWAIT, libc::SO_SNDTIMEO).may_wait(block));
}
