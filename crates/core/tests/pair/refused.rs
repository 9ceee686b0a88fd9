//! Sets to which the kernel refuses what a lane takes, while somebody sleeps there: what the ring has, TCP would have told.

use crate::epoll::Epoll;
use crate::{Pair, as_tcp};
use shunpike_core::conn;
use shunpike_wire::Reason;
use std::thread;
use std::time::Duration;

const LONG: u64 = 2_000_000_000;

/// What the kernel refuses to the thread that adds a connection.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Refused {
    /// The doorbell.
    Bell,
    /// The connection's own entry, as it is put in again.
    Entries,
    /// What is changed.
    Changes,
}

const ADD: u32 = libc::EPOLL_CTL_ADD as u32;
const MOD: u32 = libc::EPOLL_CTL_MOD as u32;

/// From now on the calling thread may not do so with epoll sets, but for `fd`.
fn refuse(refused: Refused, fd: i32) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let is = |k: u32, jt: u8, jf: u8| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
    let give = |what: u32| statement(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let op = if refused == Refused::Changes { MOD } else { ADD };
    // Places of the call's number and of the arguments in seccomp_data. The doorbell is another descriptor.
    let (of_op, of_fd) = (24, 32);
    let is_refused = if refused == Refused::Bell { is(fd as u32, 1, 0) } else { is(fd as u32, 0, 1) };
    let mut filter = [
        load(0),
        is(libc::SYS_epoll_ctl as u32, 0, 5),
        load(of_op),
        is(op, 0, 3),
        load(of_fd),
        is_refused,
        give(libc::SECCOMP_RET_ERRNO | libc::ENOSPC as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: program and filter live through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let done = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
        assert_eq!(done, 0);
    }
}

fn bits(told: Vec<(i32, i32)>) -> Vec<i32> {
    told.into_iter().map(|(_, bits)| bits).collect()
}

/// What a set tells that a thread sleeps in while another adds a connection with unread bytes, and what it tells after that.
fn told(pair: &Pair, refused: Refused, events: i32, before: bool) -> Vec<Vec<i32>> {
    let (set, fd) = (Epoll::new(), pair.server.fd);
    pair.client.send(b"bytes").expect("room");
    let adds = || {
        // Its own entry is in by then, where only later ones are refused.
        refuse(refused, fd);
        set.add(fd, events).expect("an entry");
    };
    let mut seen = Vec::new();
    thread::scope(|scope| {
        let sleeps = scope.spawn(|| set.wait(LONG));
        if !before {
            thread::sleep(Duration::from_millis(30));
        }
        scope.spawn(adds).join().expect("added");
        seen.push(bits(sleeps.join().expect("it ends in peace")));
    });
    for n in [2, 3] {
        seen.push(bits(set.wait(0)));
        seen.push(vec![pair.server.recv(n).map_or(0, |bytes| bytes.len() as i32)]);
        if events & libc::EPOLLONESHOT != 0 {
            set.ctl(libc::EPOLL_CTL_MOD, fd, events).expect("it is there");
        }
    }
    seen.push(bits(set.wait(0)));
    pair.client.send(b"more").expect("room");
    seen.push(bits(set.wait(LONG)));
    seen.push(vec![pair.server.recv(100).map_or(0, |bytes| bytes.len() as i32)]);
    seen.push(bits(set.wait(0)));
    seen
}

const KINDS: [i32; 4] = [
    libc::EPOLLIN,
    libc::EPOLLIN | libc::EPOLLET,
    libc::EPOLLIN | libc::EPOLLONESHOT,
    libc::EPOLLIN | libc::EPOLLOUT,
];
const EXCLUSIVE: i32 = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;

#[test]
fn who_sleeps_where_the_doorbell_is_refused_is_told() {
    for events in [&KINDS[..], &[EXCLUSIVE]].concat() {
        for before in [false, true] {
            as_tcp(|pair| told(pair, Refused::Bell, events, before));
        }
    }
}

#[test]
fn who_sleeps_where_a_change_is_refused_is_told() {
    for events in KINDS {
        as_tcp(|pair| told(pair, Refused::Changes, events, false));
    }
}

/// Both threads that sleep there, as none reads.
#[test]
fn all_who_sleep_where_the_doorbell_is_refused_are_told() {
    as_tcp(|pair| {
        let (set, fd) = (Epoll::new(), pair.server.fd);
        pair.client.send(b"bytes").expect("room");
        let seen = thread::scope(|scope| {
            let sleeps = [(); 2].map(|()| scope.spawn(|| set.wait(LONG).len()));
            thread::sleep(Duration::from_millis(30));
            let adds = || {
                refuse(Refused::Bell, fd);
                set.add(fd, libc::EPOLLIN).expect("an entry");
            };
            scope.spawn(adds).join().expect("added");
            sleeps.map(|sleeps| sleeps.join().expect("it ends in peace"))
        });
        (seen, set.wait(0).len())
    });
}

/// A lane ends, and the kernel does not take the program's own entry back from who ends it.
#[test]
fn who_sleeps_where_an_entry_is_not_given_back_is_told() {
    for events in [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLONESHOT, EXCLUSIVE] {
        as_tcp(|pair| {
            let (set, server) = (Epoll::new(), &pair.server);
            let fd = server.fd;
            set.add(fd, events).expect("an entry");
            let mut seen = Vec::new();
            thread::scope(|scope| {
                let sleeps = scope.spawn(|| bits(set.wait(LONG)));
                thread::sleep(Duration::from_millis(30));
                let ends = || {
                    refuse(if events == EXCLUSIVE { Refused::Entries } else { Refused::Changes }, fd);
                    if let Some(conn) = server.known() {
                        conn::revoke_for_good(conn, fd, Reason::UrgentData);
                    }
                };
                scope.spawn(ends).join().expect("ended");
                thread::sleep(Duration::from_millis(30));
                pair.client.send(b"bytes").expect("room");
                seen.push(sleeps.join().expect("it ends in peace"));
            });
            seen.push(bits(set.wait(0)));
            assert_eq!(pair.server.recv(100).as_deref(), Ok(&b"bytes"[..]));
            seen.push(bits(set.wait(0)));
            seen
        });
    }
}

/// A sleep in vain is one.
#[test]
fn a_set_without_a_doorbell_is_not_looked_at_all_the_time() {
    let pair = Pair::open();
    let (set, fd) = (Epoll::new(), pair.server.fd);
    pair.client.send(b"bytes").expect("room");
    thread::scope(|scope| {
        let adds = || {
            refuse(Refused::Bell, fd);
            set.add(fd, libc::EPOLLIN | libc::EPOLLET).expect("an entry");
        };
        scope.spawn(adds).join().expect("added");
    });
    assert_eq!(set.wait(0).len(), 1);
    let cpu = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is ours.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let begun = cpu();
    assert_eq!(set.wait(300_000_000), []);
    let spent = cpu() - begun;
    assert!(spent < Duration::from_millis(100), "{spent:?} of CPU time");
}
