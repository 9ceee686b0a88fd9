//! Processes that share a connection, and die with it.

use crate::end::End;
use crate::fork::{Child, Ended, GivenAway, die, give_away};
use crate::{Pair, as_tcp_once};
use shunpike_core::{conn, tls};
use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::Duration;

const KILLED: Ended = Ended::Killed(libc::SIGKILL);

/// What comes next, waited for.
fn next(end: &End) -> Result<Vec<u8>, shunpike_core::Errno> {
    end.poll(libc::POLLIN, Some(5_000_000_000));
    end.recv(1000)
}

#[test]
fn a_child_goes_on_with_the_connection() {
    as_tcp_once(|pair| {
        let GivenAway { client, child, .. } = &give_away(pair, |server| {
            for _ in 0..3 {
                let question = next(server).expect("it is asked");
                server.send(&[&question[..], b", answered"].concat()).expect("room");
            }
        });
        let answers = [b"one", b"two", b"six"].map(|question| {
            client.send(question).expect("room");
            next(client)
        });
        let end = next(client);
        (answers, end, child.pid() > 0)
    });
}

#[test]
fn the_last_words_of_one_that_is_killed_are_read() {
    as_tcp_once(|pair| {
        let GivenAway { client, child, broker: _broker } = give_away(pair, |server| {
            server.send(b"last words").expect("room");
            die();
        });
        (child.ended(), next(&client), next(&client))
    });
}

#[test]
fn one_that_is_killed_in_its_sleep_ends_its_stream() {
    as_tcp_once(|pair| {
        let GivenAway { client, child, broker: _broker } = give_away(pair, |server| {
            server.send(b"about to sleep").expect("room");
            let _ = server.recv_with(10, 0);
        });
        let first = next(&client);
        // SAFETY: no pointers.
        unsafe { libc::kill(child.pid() as i32, libc::SIGKILL) };
        let ended = child.ended();
        (first, ended, next(&client), client.shows())
    });
}

#[test]
fn who_writes_to_one_that_was_killed_is_told() {
    let pair = Pair::open();
    let GivenAway { client, child, broker: _broker } = give_away(pair, |_| die());
    assert_eq!(child.ended(), KILLED);
    assert_eq!(next(&client).as_deref(), Ok(&b""[..]));
    let refused = (0..1000).find_map(|_| client.send(b"hello?").err());
    assert!(refused.is_some(), "nobody is there");
}

#[test]
fn unread_bytes_reset_the_connection_at_a_child_s_exit() {
    as_tcp_once(|pair| {
        pair.client.send(b"unread").expect("room");
        let GivenAway { client, child, broker: _broker } = give_away(pair, |_| conn::at_exit());
        (child.ended(), client.recv(10))
    });
}

#[test]
fn a_holder_that_dies_within_a_lock_leaves_it_to_the_others() {
    let pair = Pair::open();
    for _ in 0..3 {
        let child = Child::fork(|| {
            let block = pair.server.conn().block;
            let (section, other) = (tls::critical(), tls::critical());
            let _both = (block.tx.lock(&section), block.rx.lock(&other));
            die();
        });
        assert_eq!(child.ended(), KILLED);
        pair.talk();
    }
    assert!(pair.is_on_lanes());
}

#[test]
fn parent_and_child_write_to_one_stream() {
    as_tcp_once(|pair| {
        let child = Child::fork(|| {
            pair.client.send(b"the child's, ").expect("room");
            std::mem::forget(pair.client.dup());
        });
        let ended = child.ended();
        pair.client.send(b"the parent's").expect("room");
        (ended, pair.server.recv_all())
    });
}

#[test]
fn one_that_was_shared_comes_on_lanes_again_when_it_is_one_s_own() {
    let pair = Pair::open();
    let child = Child::fork(|| pair.talk_alone());
    assert_eq!(child.ended(), Ended::Exited(0));
    conn::revoke(pair.client.conn(), pair.client.fd, shunpike_wire::Reason::Revoked);
    pair.talk();
    for _ in 0..40 {
        pair.pass(std::time::Duration::from_secs(1));
        pair.talk();
    }
    assert!(pair.is_on_lanes(), "{:?}", pair.state());
}

/// The process's mappings of DMBs, and descriptors of them, which are the broker's.
fn of_dmbs() -> [usize; 2] {
    let is_dmb = |name: &str| name.contains("memfd:shunpike-dmb");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own");
    let open = std::fs::read_dir("/proc/self/fd").expect("our own");
    let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let names = open.filter_map(|name| name.into_os_string().into_string().ok());
    [maps.lines().filter(|line| is_dmb(line)).count(), names.filter(|name| is_dmb(name)).count()]
}

/// One that is not on lanes, and nothing of any other; what there is of DMBs then.
fn at_rest() -> (Pair, [usize; 2]) {
    let mut pair = Pair::open();
    rest(&mut pair);
    (pair, of_dmbs())
}

fn rest(pair: &mut Pair) {
    pair.renew();
    // What is parked goes.
    pair.pass(Duration::from_secs(20));
    pair.pump();
    pair.talk();
}

/// A child is left with both ends, does something with them, and is gone; then other connections come and go.
fn is_given_back_after(what: impl Fn(&Pair)) {
    let (mut pair, before) = at_rest();
    for _ in 0..4 {
        pair.earn();
        let (mut goes_on, told) = std::io::pipe().expect("a pipe");
        let told = ManuallyDrop::new(told);
        let child = Child::fork(|| {
            // SAFETY: the child's own copy.
            unsafe { libc::close(told.as_raw_fd()) };
            assert_eq!(goes_on.read(&mut [0]).expect("a pipe"), 0);
            what(&pair);
        });
        pair.renew();
        pair.pump();
        assert!(of_dmbs()[0] > before[0], "the child has them");
        drop(ManuallyDrop::into_inner(told));
        child.ended();
    }
    pair.pass(Duration::from_secs(1));
    pair.earn();
    rest(&mut pair);
    assert_eq!(of_dmbs(), before);
}

#[test]
fn what_a_child_was_left_with_is_given_back_when_it_is_killed() {
    is_given_back_after(|_| die());
}

#[test]
fn what_a_child_was_left_with_is_given_back_when_it_exits() {
    is_given_back_after(|pair| {
        pair.talk_alone();
        conn::at_exit();
    });
}

#[test]
fn what_a_child_was_left_with_is_given_back_when_it_closes_it() {
    is_given_back_after(|pair| {
        pair.talk_alone();
        for end in [&pair.client, &pair.server] {
            conn::close(end.fd);
        }
    });
}

/// Its parent, which holds the connection still, finds no lane that it could end.
#[test]
fn what_a_child_has_ended_is_given_back() {
    let (mut pair, before) = at_rest();
    pair.earn();
    let child = Child::fork(|| {
        for end in [&pair.client, &pair.server] {
            conn::revoke(end.conn(), end.fd, shunpike_wire::Reason::Revoked);
        }
        pair.talk_alone();
        pair.talk_alone();
        assert!(pair.is_on_tcp());
    });
    assert_eq!(child.ended(), Ended::Exited(0));
    assert!(pair.is_on_tcp());
    pair.renew();
    pair.earn();
    rest(&mut pair);
    assert_eq!(of_dmbs(), before);
}
