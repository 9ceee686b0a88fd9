//! Connections that go to code that knows nothing of lanes.

use crate::end::{End, Res, libcs};
use crate::fork::{Child, Ended};
use crate::{NOTHING, Pair, as_tcp, as_tcp_once};
use shunpike_core::{conn, life};
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;
use std::time::Duration;

/// recv(2) of another program, which has the socket and nothing else.
fn foreign_read(end: &End) -> Res<Vec<u8>> {
    let mut bytes = vec![0; 1000];
    // SAFETY: the buffer is ours.
    let n = libcs(unsafe { libc::recv(end.fd, bytes.as_mut_ptr().cast(), 1000, libc::MSG_DONTWAIT) })?;
    bytes.truncate(n);
    Ok(bytes)
}

/// `hand` gives the server's end away, whose reader finds all that it had not read, and all that comes after.
fn is_read_by_another(hand: impl Fn(&End)) {
    as_tcp(|pair| {
        pair.client.send(b"unread, ").expect("room");
        hand(&pair.server);
        // The client's next look at anything.
        pair.client.shows();
        pair.client.send(b"and more").expect("room");
        let read = (foreign_read(&pair.server), foreign_read(&pair.server));
        assert!(pair.client.is_on_tcp() && pair.server.is_on_tcp());
        read
    });
}

fn survives_exec(end: &End) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(end.fd, libc::F_SETFD, 0) }, 0);
}

#[test]
fn what_is_passed_on_is_read_by_whoever_gets_it() {
    is_read_by_another(|end| {
        end.known().inspect(|&conn| conn::hand_over(conn, end.fd, Reason::HandedOver));
    });
}

#[test]
fn what_survives_exec_is_read_by_the_next_program() {
    is_read_by_another(|end| {
        survives_exec(end);
        conn::before_exec();
    });
}

#[test]
fn what_a_child_of_vfork_duplicates_is_read_by_what_it_executes() {
    is_read_by_another(|end| conn::hand_over_from_child(end.fd));
}

#[test]
fn what_exec_closes_stays_on_its_lane() {
    let pair = Pair::open();
    conn::before_exec();
    pair.talk();
    assert!(pair.is_on_lanes());
}

#[test]
fn what_a_spawned_program_got_comes_back_when_that_has_ended() {
    let pair = Pair::open();
    survives_exec(&pair.server);
    conn::before_spawn(0);
    let (go, mut wait) = std::io::pipe().map(|(wait, go)| (go, wait)).expect("a pipe");
    // It has the socket without a word of ours.
    // SAFETY: it makes system calls alone.
    let spawned = match unsafe { libc::fork() } {
        0 => {
            use std::io::Read;
            let go = go;
            drop(go);
            let _ = wait.read(&mut [0]);
            // SAFETY: as above.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    };
    conn::spawned(u32::try_from(spawned).ok());
    for _ in 0..20 {
        pair.pass(Duration::from_secs(2));
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.server.phase(), Phase::Given);
    drop(go);
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(spawned, core::ptr::null_mut(), 0) }, spawned);
    for _ in 0..40 {
        pair.pass(Duration::from_secs(2));
        pair.talk();
    }
    assert!(pair.is_on_lanes(), "{:?}", pair.state());
}

/// In a child, as it is for good: a pair on lanes goes back to TCP by `what`, with all that is unread.
fn all_goes_back_by(what: impl Fn()) {
    let pair = Pair::open();
    let child = Child::fork(|| {
        pair.client.send(b"unread").expect("room");
        what();
        pair.client.shows();
        assert_eq!(pair.server.recv_all(), (b"unread".to_vec(), Some(NOTHING)));
        pair.talk_alone();
        assert!(pair.is_on_tcp());
    });
    assert_eq!(child.ended(), Ended::Exited(0));
}

#[test]
fn a_ring_ends_all_lanes() {
    all_goes_back_by(conn::ring_set_up);
}

#[test]
fn a_filter_of_system_calls_ends_all_lanes() {
    all_goes_back_by(life::confine);
}

/// The server's end is a child's, too, for a while.
fn lend(end: &End) {
    survives_exec(end);
    conn::before_spawn(0);
    conn::spawned(None);
}

/// The client's end is closed by the kernel, without a word.
fn kill(end: &End) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::close(end.fd) }, 0);
}

#[test]
fn who_lent_it_reads_what_a_sender_that_was_killed_could_not_take_back() {
    as_tcp_once(|pair| {
        pair.client.send(b"unread").expect("room");
        lend(&pair.server);
        kill(&pair.client);
        (pair.server.recv_all(), pair.server.recv_all())
    });
}

#[test]
fn who_lent_it_goes_on_by_tcp() {
    as_tcp(|pair| {
        pair.client.send(b"unread, ").expect("room");
        lend(&pair.server);
        pair.client.shows();
        pair.client.send(b"and more, ").expect("room");
        // The child reads some of it, of which no hook knows.
        let read = (foreign_read(&pair.server), pair.server.recv_all());
        assert!(pair.is_on_tcp());
        pair.client.send(b"and the rest").expect("room");
        (read, pair.server.recv_all())
    });
}
