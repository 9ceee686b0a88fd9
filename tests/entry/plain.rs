//! A Rust program without a libc that is loaded: threads, children, sockets, a panic that is caught.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = thread::spawn(move || {
        for _ in 0..20 {
            let (mut peer, _) = listener.accept().expect("a peer");
            let mut bytes = [0; 100];
            for _ in 0..50 {
                peer.read_exact(&mut bytes).expect("bytes");
                peer.write_all(&bytes).expect("sent");
            }
        }
    });
    for round in 0..20 {
        let mut peer = TcpStream::connect(address).expect("a server");
        for turn in 0..50 {
            let mut got = [0; 100];
            peer.write_all(&[round ^ turn; 100]).expect("sent");
            peer.read_exact(&mut got).expect("bytes");
            assert_eq!(got, [round ^ turn; 100]);
        }
    }
    server.join().expect("the server ended");
    let threads: Vec<_> = (0..100).map(|number| thread::spawn(move || number * 2)).collect();
    let sum: i32 = threads.into_iter().map(|one| one.join().expect("a number")).sum();
    let output = Command::new("/bin/echo").arg("child").output().expect("a child");
    let panicked = std::panic::catch_unwind(|| panic!("as asked")).is_err();
    println!("{sum} {} {panicked}", String::from_utf8_lossy(&output.stdout).trim());
}
