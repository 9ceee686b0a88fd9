//! Descriptors that make whoever touches or closes them wait: a helper does, and the broker goes on.

mod support;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use shunpike_shm::arena::Arena;
use shunpike_wire::session::{ConnId, FromBroker, Role, ToBroker};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ptr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::*;

const CONN: ConnId = ConnId(1 << 32);
/// What anybody may wait for the broker.
const SOON: Duration = Duration::from_millis(100);

/// A page whose first access waits as long as this lives (userfaultfd). As a page of a FUSE file would, which needs no rights.
struct Page {
    address: usize,
    faults: Option<OwnedFd>,
}

const PAGE: usize = 4096;

impl Page {
    /// `None` where we may not.
    fn new() -> Option<Self> {
        // include/uapi/linux/userfaultfd.h
        const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
        const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
        const UFFD_API: u64 = 0xaa;
        const MODE_MISSING: u64 = 1;
        // Non-blocking, or poll() tells of an error at once. SAFETY: a new descriptor, a new mapping, and two requests with structs of the sizes that their numbers say.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
            if fd < 0 {
                eprintln!("no userfaultfd here: {}", std::io::Error::last_os_error());
                return None;
            }
            let faults = OwnedFd::from_raw_fd(fd as i32);
            let mut api = [UFFD_API, 0, 0];
            assert_eq!(libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()), 0);
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let address = libc::mmap(ptr::null_mut(), PAGE, prot, flags, -1, 0) as usize;
            let mut register = [address as u64, PAGE as u64, MODE_MISSING, 0];
            assert_eq!(libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()), 0);
            Some(Self { address, faults: Some(faults) })
        }
    }

    /// Waits until somebody waits for it.
    fn until_touched(&self) {
        let faults = self.faults.as_ref().expect("open");
        assert!(readable(faults, PATIENCE));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Whoever waits goes on, with a page of zeroes.
        drop(self.faults.take());
    }
}

/// Has a thread hold the lock of a TCP socket, in a send from `page`.
fn hold(socket: &TcpStream, page: &Page) -> JoinHandle<()> {
    let (socket, address) = (socket.try_clone().expect("dup"), page.address);
    let thread = std::thread::spawn(move || {
        // SAFETY: the page is mapped for as long as the process lives; the kernel reads it.
        unsafe { libc::send(socket.as_raw_fd(), address as *const libc::c_void, PAGE, libc::MSG_NOSIGNAL) };
    });
    page.until_touched();
    thread
}

/// A socket whose last close waits for a second. Who it is that closes last here may be the test: so it is not for long.
fn lingering() -> (TcpStream, TcpStream) {
    let (mut socket, peer) = tcp_pair();
    socket.set_nonblocking(true).expect("mode");
    while socket.write(&[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(1))).expect("option");
    (socket, peer)
}

/// That the broker answers whatever `attack` has done just now, for some turns of its loop.
fn answers_soon(broker: &TestBroker) {
    for _ in 0..20 {
        let asked = Instant::now();
        broker.info();
        assert!(asked.elapsed() < SOON, "it took {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// That others get their lanes.
fn matches_soon(broker: &TestBroker) {
    let (client, server) = (Client::connect(broker), Client::connect(broker));
    let (a, b) = tcp_pair();
    client.nominate(CONN, Role::Client, (0, 0), &a);
    server.nominate(CONN, Role::Server, (0, 0), &b);
    for session in [&client, &server] {
        assert!(matches!(session.hear(), FromBroker::Matched { .. }));
    }
}

#[test]
fn a_socket_whose_lock_is_held_keeps_only_its_own_session_waiting() {
    let Some(page) = Page::new() else { return };
    let broker = TestBroker::start();
    let (a, _b) = tcp_pair();
    let holder = hold(&a, &page);
    let client = Client::connect(&broker);
    client.nominate(CONN, Role::Client, (0, 0), &a);
    client.say(ToBroker::Withdraw { conn: CONN });
    answers_soon(&broker);
    matches_soon(&broker);
    // Its helper is given up, and so is the session.
    client.until_over();
    answers_soon(&broker);
    matches_soon(&broker);
    drop(page);
    holder.join().expect("the send returns");
    broker.until_empty();
}

#[test]
fn a_lock_that_is_held_for_a_moment_delays_and_nothing_else() {
    let Some(page) = Page::new() else { return };
    let broker = TestBroker::start();
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    let (a, mut b) = tcp_pair();
    let holder = hold(&a, &page);
    client.nominate(CONN, Role::Client, (PAGE as u64, 0), &a);
    answers_soon(&broker);
    drop(page);
    holder.join().expect("the send returns");
    b.read_exact(&mut [0; PAGE]).expect("what was sent");
    server.nominate(CONN, Role::Server, (0, PAGE as u64), &b);
    // What is acknowledged meanwhile has either of them asked again.
    let ends = [(&client, Role::Client, (PAGE as u64, 0), &a), (&server, Role::Server, (0, PAGE as u64), &b)];
    let mut matched = 0;
    until(|| {
        for (session, role, counts, socket) in ends {
            while !session.silent() {
                match session.hear() {
                    FromBroker::Again { .. } => session.nominate(CONN, role, counts, socket),
                    FromBroker::Matched { .. } => matched += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        matched == 2
    });
}

#[test]
fn some_held_sockets_of_a_user_leave_helpers_for_its_others() {
    let pages: Vec<Page> = (0..3).map_while(|_| Page::new()).collect();
    let broker = TestBroker::start();
    let mut held = Vec::new();
    for page in &pages {
        let (a, b) = tcp_pair();
        let holder = hold(&a, page);
        let client = Client::connect(&broker);
        client.nominate(CONN, Role::Client, (0, 0), &a);
        held.push((holder, client, a, b));
        answers_soon(&broker);
        matches_soon(&broker);
    }
    drop(pages);
    for (holder, ..) in held {
        holder.join().expect("the send returns");
    }
}

#[test]
fn what_is_left_unread_is_closed_elsewhere() {
    let broker = TestBroker::start();
    let mut peers = Vec::new();
    for _ in 0..4 {
        let session = try_connect(&broker.socket).expect("it listens");
        // No message: the session ends with all the rest unread.
        send_bytes(&session, b"?", &[]).expect("sends");
        for _ in 0..4 {
            let (socket, peer) = lingering();
            let _ = send_bytes(&session, b"?", &[socket.as_fd()]);
            peers.push(peer);
        }
        drop(session);
        answers_soon(&broker);
    }
    // In the queue of a queue.
    let (carrier, other) = std::os::unix::net::UnixStream::pair().expect("socket pair");
    let (socket, peer) = lingering();
    send_bytes(&OwnedFd::from(carrier), b"?", &[socket.as_fd()]).expect("sends");
    drop(socket);
    let client = Client::connect(&broker);
    let message = ToBroker::Nominate { conn: CONN, role: Role::Client, tx: 0, rx: 0, answer: false };
    send(&client.socket, &message, &[other.as_fd()]);
    drop((other, peer));
    answers_soon(&broker);
    matches_soon(&broker);
}

#[test]
fn more_descriptors_than_any_message_has_are_closed_elsewhere() {
    let broker = TestBroker::start();
    let client = Client::connect(&broker);
    let (a, _b) = tcp_pair();
    let (sockets, peers): (Vec<_>, Vec<_>) = (0..100).map(|_| lingering()).unzip();
    let Some(page) = Page::new() else { return };
    let holder = hold(&a, &page);
    client.nominate(CONN, Role::Client, (0, 0), &a);
    // As many as one message may have.
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).cycle().take(253).collect();
    let message = ToBroker::Nominate { conn: CONN, role: Role::Client, tx: 0, rx: 0, answer: false };
    let mut bytes = [0; 64];
    let len = message.encode(&mut bytes).expect("encodes");
    send_many(&client.socket, &bytes[..len], &fds);
    drop(sockets);
    // Now it comes to these.
    drop(page);
    answers_soon(&broker);
    matches_soon(&broker);
    drop(peers);
    holder.join().expect("the send returns");
}

/// As [`send_bytes`], with up to 253 descriptors.
fn send_many(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = rustix::io::IoSlice::new(bytes);
    rustix::net::sendmsg(socket, &[bytes], &mut control, SendFlags::NOSIGNAL).expect("sends");
}

/// An eventfd in an epoll set. Its last close takes the lock of the set.
fn doorbell_in_a_set() -> (OwnedFd, OwnedFd) {
    let bell = || eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd");
    let (bell, ready) = (bell(), bell());
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    for fd in [&ready, &bell] {
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("added");
    }
    std::mem::forget(ready);
    (bell, set)
}

/// Has a thread hold the lock of an epoll set, in a wait that writes to `page`.
fn hold_set(set: OwnedFd, page: &Page) -> JoinHandle<()> {
    let address = page.address;
    let holder = std::thread::spawn(move || {
        // SAFETY: the page is mapped for as long as the process lives; the kernel writes events there.
        unsafe { libc::epoll_wait(set.as_raw_fd(), address as *mut libc::epoll_event, 8, -1) };
    });
    page.until_touched();
    holder
}

#[test]
fn a_doorbell_whose_last_close_waits_is_closed_elsewhere() {
    let broker = TestBroker::start();
    let (bell, set) = doorbell_in_a_set();
    let Some(page) = Page::new() else { return };
    let session = try_connect(&broker.socket).expect("it listens");
    let arena = Arena::create(1).expect("arena");
    send(&session, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
    assert!(matches!(receive(&session), Some((FromBroker::Welcome(_), _))));
    drop(bell);
    let holder = hold_set(set, &page);
    drop(session);
    answers_soon(&broker);
    matches_soon(&broker);
    drop(page);
    holder.join().expect("the wait returns");
}

/// Also that of a program which is not served.
#[test]
fn a_doorbell_of_one_who_is_turned_away_is_closed_elsewhere() {
    let broker = TestBroker::with(|config| config.max_sessions = 2);
    let served = [Client::connect(&broker), Client::connect(&broker)];
    let mut held = Vec::new();
    for page in (0..3).map_while(|_| Page::new()) {
        let (bell, set) = doorbell_in_a_set();
        let holder = hold_set(set, &page);
        let session = try_connect(&broker.socket).expect("it listens");
        let arena = Arena::create(1).expect("arena");
        send(&session, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
        // Here it would wait as well.
        let closer = std::thread::spawn(move || drop(bell));
        assert!(receive(&session).is_none(), "turned away");
        answers_soon(&broker);
        held.push((page, holder, closer));
    }
    for (page, holder, closer) in held {
        drop(page);
        holder.join().expect("the wait returns");
        closer.join().expect("the close returns");
    }
    drop(served);
}

/// Whoever writes to a memfd holds a lock that giving its memory back needs.
#[test]
fn memory_that_somebody_writes_to_is_given_back_elsewhere() {
    let Some(page) = Page::new() else { return };
    let broker = TestBroker::start();
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    let (a, b) = tcp_pair();
    client.nominate(CONN, Role::Client, (0, 0), &a);
    server.nominate(CONN, Role::Server, (0, 0), &b);
    for session in [&client, &server] {
        assert!(matches!(session.hear(), FromBroker::Matched { .. }));
    }
    let memory = client.register(CONN);
    let FromBroker::Registered { token, reason: 0, .. } = client.hear() else { panic!("refused") };
    server.say(ToBroker::Attach { conn: CONN, token });
    assert!(matches!(server.hear(), FromBroker::Attached { reason: 0, .. }));
    server.say(ToBroker::Detach { token, gone: true });
    let (own, address) = (memory.try_clone().expect("dup"), page.address);
    let holder = std::thread::spawn(move || {
        // SAFETY: as above; the kernel reads the page.
        unsafe { libc::pwrite(own.as_raw_fd(), address as *const libc::c_void, PAGE, 8192) };
    });
    page.until_touched();
    client.say(ToBroker::Park { token });
    client.say(ToBroker::Withdraw { conn: CONN });
    // What is parked goes when its peer does.
    drop(server);
    answers_soon(&broker);
    matches_soon(&broker);
    drop(page);
    holder.join().expect("the write returns");
}
