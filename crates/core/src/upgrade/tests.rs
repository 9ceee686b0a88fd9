use std::os::fd::AsRawFd;

use shunpike_wire::session::Expected;

use super::*;
use crate::table::Entry;

/// Messages cross: the broker may have said something of a match that we have left, and nominated the connection anew since. One that
/// took it for news of the next match would nominate it a third time, in the middle of that.
#[test]
fn what_is_said_of_an_earlier_nomination_is_not_of_the_next() {
    let mut session = crate::session::lock();
    assert!(table::init());
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let fd = socket.as_raw_fd();
    let conn = process::allocate().map(Conn::new).expect("a block");
    let block = conn.block;
    table::set(fd, Entry::Conn(conn));
    block.fd.store(fd as u32, Ordering::Relaxed);

    let nominated = |session: &mut Session, message| {
        block.phase.store(phase::NOMINATED, Ordering::Relaxed);
        take(session, message, Fds::default());
        block.phase.load(Ordering::Relaxed) == phase::NOMINATED
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
