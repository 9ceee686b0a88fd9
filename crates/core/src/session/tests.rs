//! What becomes of a message that the kernel does not take.

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

use super::*;
use crate::eager;
use crate::sys::refusing::refuse;

/// The kernel refuses a message though the socket has room, and goes on to show room: who waits for that would never sleep.
#[test]
fn who_waits_does_not_spin_while_messages_are_refused() {
    let mut session = lock();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, broker) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    SOCKET.store(ours.as_raw_fd(), Ordering::Relaxed);
    session.socket = Some(ours);
    let mut send = |errno| {
        let in_thread = || {
            refuse(libc::SYS_sendmsg, &[], errno);
            assert!(session.send(&ToBroker::Unregister { token: 7 }), "it is kept");
        };
        std::thread::scope(|scope| scope.spawn(in_thread).join()).expect("no panic");
        let (socket, most) = eager::attention().expect("something waits");
        (socket.events, most)
    };
    for errno in [libc::ETOOMANYREFS, libc::ENOBUFS, libc::ENOMEM] {
        let (events, most) = send(errno);
        assert_eq!(events, libc::POLLIN, "it shows room all the time");
        assert!(is_refused() && (1_000_000..=50_000_000).contains(&most), "{most}");
    }
    let (events, _) = send(libc::EAGAIN);
    assert!(!is_refused() && events == libc::POLLIN | libc::POLLOUT, "a full socket tells of its room");
    assert!(session.flush() && !has_unsent() && eager::attention().is_none());
    let mut bytes = [0; MAX];
    assert!((0..4).all(|_| rustix::net::recv(&broker, &mut bytes[..], RecvFlags::DONTWAIT).is_ok()));
    session.close();
}
