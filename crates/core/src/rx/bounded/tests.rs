//! What TCP is seen to have while it changes.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;

use super::Tcp;

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
