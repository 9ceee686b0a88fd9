use shunpike_shm::lifecycle::{Event, Phase};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};
use shunpike_wire::session::{CONTROL, Expected, MAX, MAX_UEIDS, VERSION, Welcome};

use super::lanes::grant;
use super::*;
use crate::table::Entry;
use shunpike_shm::lane::{Dmb, ring_size};

/// Messages cross: the broker may have said something of a match that we have left, and nominated the connection anew since. One that
/// took it for news of the next match would nominate it a third time, in the middle of that.
#[test]
fn what_is_said_of_an_earlier_nomination_is_not_of_the_next() {
    let _alone = crate::device::tests::alone();
    let mut session = crate::session::lock();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let fd = socket.as_raw_fd();
    let conn = process::allocate().map(Conn::new).expect("a block");
    let block = conn.block;
    table::set(fd, Entry::Conn(conn));
    block.fd.store(fd as u32, Ordering::Relaxed);

    let nominated = |session: &mut Session, message| {
        block.life.on(Event::End);
        block.life.on(Event::Nominate);
        take(session, message, Fds::default());
        block.life.is(Phase::Nominated)
    };
    let earlier = id_of(block).expect("an id");
    forget(&mut session, block);
    let now = id_of(block).expect("an id");
    assert_ne!(earlier, now);
    let reason = Reason::NotEstablished.code();
    let matched = |conn| FromBroker::Matched {
        conn,
        link: u32::MAX,
        slot: 0,
        side: 0,
        first_contact: false,
        doorbells: 0,
        peer: 0,
    };
    for (message, of_now) in [
        (FromBroker::Gone { conn: earlier }, FromBroker::Waiting { conn: now, expected: Expected::Nobody }),
        (FromBroker::Again { conn: earlier }, FromBroker::Again { conn: now }),
        (FromBroker::Refused { conn: earlier, reason }, FromBroker::Refused { conn: now, reason }),
        (matched(earlier), matched(now)),
    ] {
        assert!(nominated(&mut session, message), "{message:?}");
        let waits_on = matches!(of_now, FromBroker::Waiting { .. });
        assert_eq!(nominated(&mut session, of_now), waits_on, "{of_now:?}");
    }
    // Of a link group that is not known here: that match is left, too.
    assert_ne!(id_of(block), Some(now));
    table::take(fd);
}

/// What waits for the broker is nominated when its welcome is read. Where that is in the middle of nominating such a connection, the broker
/// would hear of it twice, and either end would give up the match that the other is in.
#[test]
fn a_welcome_in_the_middle_of_a_nomination_does_not_repeat_it() {
    let _alone = crate::device::tests::alone();
    let mut session = crate::session::lock();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("broker");
    let seqpacket =
        || rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let listener = seqpacket();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("a path")).expect("to bind");
    rustix::net::listen(&listener, 1).expect("to listen");
    crate::session::configure(path.as_os_str().as_encoded_bytes(), b"");

    let server = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let socket = TcpStream::connect(server.local_addr().expect("its address")).expect("a connection");
    let fd = socket.as_raw_fd();
    let conn = process::allocate().map(Conn::new).expect("a block");
    table::set(fd, Entry::Conn(conn));

    nomination::nominate_in(&mut session, conn, fd);
    assert!(session.later.add(conn, fd));
    let broker = rustix::net::accept(&listener).expect("a session");
    welcome(broker.as_fd());
    // The library looks at the socket seldom while nothing comes.
    let until = Instant::now() + Duration::from_secs(10);
    while conn.block.life.is(Phase::Watched) && Instant::now() < until {
        nomination::nominate_in(&mut session, conn, fd);
    }

    let mut nominations = 0;
    let mut bytes = [0; MAX];
    while let Ok((len, _)) = rustix::net::recv(&broker, &mut bytes, RecvFlags::DONTWAIT) {
        let message = ToBroker::decode(&bytes[..len]).expect("a message of ours");
        nominations += u32::from(matches!(message, ToBroker::Nominate { .. }));
    }
    assert_eq!(nominations, 1);
    table::take(fd);
}

/// A connection whose descriptor is that of `socket`, in this process's table.
fn watched(socket: &impl AsRawFd) -> (Conn, i32) {
    let (conn, fd) = (process::allocate().map(Conn::new).expect("a block"), socket.as_raw_fd());
    table::set(fd, Entry::Conn(conn));
    conn.block.fd.store(fd as u32, Ordering::Relaxed);
    conn.block.life.on(Event::Nominate);
    (conn, fd)
}

#[test]
fn a_match_for_who_has_shut_down_reading_is_the_last() {
    let _alone = crate::device::tests::alone();
    let mut session = crate::session::lock();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let (conn, fd) = watched(&socket);
    let id = id_of(conn.block).expect("an id");
    conn.block.life.end_reading();
    let (link, slot, side, doorbells) = (u32::MAX, 0, 0, 0);
    take(
        &mut session,
        FromBroker::Matched { conn: id, link, slot, side, first_contact: false, doorbells, peer: 0 },
        Fds::default(),
    );
    assert!(conn.block.life.is(Phase::Stays));
    assert_eq!(conn.block.reason.load(Ordering::Relaxed), Reason::ReadingShut.code());
    table::take(fd);
}

#[test]
fn who_is_given_away_in_a_handshake_leaves_its_seat_and_who_is_nominated_again_keeps_its_name() {
    let _alone = crate::device::tests::alone();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let (conn, fd) = watched(&socket);
    let earlier = id_of(conn.block);
    conn.block.life.on(Event::Match);
    link::join(link::tests::idle(), conn.block, 0);
    conn.block.life.on(Event::Give);
    // A child after fork has no name for it, and touches nothing of its parent's.
    given_away(conn, None);
    assert!(link::of(conn.block).is_some() && id_of(conn.block) == earlier);
    given_away(conn, earlier);
    assert!(link::of(conn.block).is_none() && id_of(conn.block) != earlier);

    let now = id_of(conn.block);
    for event in [Event::Nominate, Event::Open] {
        conn.block.life.on(Event::TakeBack);
        conn.block.life.on(event);
        given_away(conn, now);
        assert_eq!(id_of(conn.block), now, "of another nomination, which is {event:?}");
    }
    table::take(fd);
}

/// What a broker answers to a Hello.
fn welcome(socket: rustix::fd::BorrowedFd<'_>) {
    let message = FromBroker::Welcome(Welcome {
        control: CONTROL,
        version: VERSION,
        peer_id: [0; 8],
        gid: 1,
        chid: 0xffff,
        seid_enabled: false,
        seid: [0; 32],
        ueid_count: 0,
        ueids: [[0; 32]; MAX_UEIDS],
    });
    let mut bytes = [0; MAX];
    let len = message.encode(&mut bytes).expect("room");
    let pages = ["session", "knobs"].map(|name| region::create_published(name, PAGE).expect("memory"));
    // SAFETY: a fresh page, as large as the knobs.
    let knobs = unsafe { &*pages[1].1.base().cast::<shunpike_shm::pages::KnobPage>() };
    knobs.active.store(1, Ordering::Relaxed);
    let fds = pages.each_ref().map(|(memory, _)| memory.as_fd());
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[..len])], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(len));
}

/// TCP shows its reader the stream's end from then on, also before the lane has begun.
#[test]
fn who_has_shut_down_reading_is_offered_no_lane() {
    let _alone = crate::device::tests::alone();
    let _session = crate::session::lock();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let socket = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    for reads in [true, false] {
        let conn = process::allocate().map(Conn::new).expect("a block");
        let ring = ring_size(0) as u32;
        let memory = region::create("shunpike-test-dmb", Dmb::len(0)).expect("memory");
        let mapped = Region::map(memory.as_fd(), Dmb::len(0)).expect("a mapping");
        if !reads {
            conn.block.life.end_reading();
        }
        assert_eq!(left_for_good(conn.block).is_none(), reads);
        assert_eq!(grant(conn, socket.as_raw_fd(), (mapped, ring), DmbToken(1), 0), reads);
        conn.block.life.on(Event::Close);
        conn.block.free();
    }
}
