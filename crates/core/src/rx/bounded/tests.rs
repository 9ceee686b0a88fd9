//! What TCP is seen to have while it changes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;

use rustix::io::Errno;

use super::Tcp;
use crate::sys::{self, refusing::refuse};

#[test]
fn a_fin_that_is_just_coming_in_is_no_urgent_data() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    // Each is accepted, and closed at once.
    thread::spawn(move || listener.incoming().for_each(drop));
    for _ in 0..2000 {
        let stream = TcpStream::connect(address).expect("the listener");
        let seen = loop {
            match Tcp::look(stream.as_raw_fd()).expect("a socket") {
                Tcp::Nothing => {}
                seen => break seen,
            }
        };
        assert_eq!(seen, Tcp::Over);
    }
}

#[test]
fn urgent_data_is_told_from_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("the listener");
    let (peer, _) = listener.accept().expect("a connection");
    let look = || Tcp::look(stream.as_raw_fd()).expect("a socket");
    assert_eq!(look(), Tcp::Nothing);
    let send = |bytes: &[u8], flags| {
        // SAFETY: a slice of ours.
        unsafe { libc::send(peer.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }
    };
    assert_eq!(send(b"!", libc::MSG_OOB), 1);
    while look() == Tcp::Nothing {}
    assert_eq!(look(), Tcp::Urgent);
}

/// A filter that a program installs round the hooks: what TCP has is known all the same.
#[test]
fn what_tcp_has_is_known_where_the_ioctl_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("the listener");
    let (mut peer, _) = listener.accept().expect("a connection");
    let fd = stream.as_raw_fd();
    let with_a_filter = || {
        refuse(libc::SYS_ioctl, &[(1, sys::SIOCINQ as u32)], libc::EPERM);
        assert_eq!(sys::queue(fd, sys::SIOCINQ), Err(Errno::PERM));
        assert_eq!(Tcp::look(fd), Ok(Tcp::Nothing));
        peer.write_all(b"three").expect("sent");
        while Tcp::look(fd) == Ok(Tcp::Nothing) {}
        assert_eq!(Tcp::look(fd), Ok(Tcp::Bytes(5)));
        let mut bytes = [0; 8];
        assert_eq!((&stream).read(&mut bytes).expect("bytes"), 5);
        peer.shutdown(Shutdown::Write).expect("shut down");
        while Tcp::look(fd) == Ok(Tcp::Nothing) {}
        assert_eq!(Tcp::look(fd), Ok(Tcp::Over));
    };
    thread::scope(|scope| scope.spawn(with_a_filter).join()).expect("no panic");
}
