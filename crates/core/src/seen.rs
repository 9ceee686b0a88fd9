//! What is known of how the program waits for a connection.
//!
//! Bytes of a lane wake nobody in the kernel. So a connection is nominated only where a wait for it was seen: a read that waits itself,
//! poll or select that told of it, or epoll_wait on each set that it is in, after it came there. A program that waits by system calls of
//! its own makes none of these (models/waits.pml).
//!
//! Calls that block and always find what they want show no wait. There it is supposed, for a socket that blocks: of a stream, and of any
//! connection in a program that was seen to wait in a read of another. Who sends a stream may also have been told of room. Where that proves wrong, the peer takes back what is unread after
//! the grace (`tx::unheard`); nothing is supposed of this connection again, nor of others for a while.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::OFlags;
use shunpike_shm::arena::{Block, Half};

use crate::sets::{self, Waited};
use crate::table::{self, Conn, Entry};
use crate::{clock, state, sys};

/// What goes mostly one way is a stream from so many bytes on.
const STREAM: u64 = 64 * 1024;
/// Nominations put off, each of which has asked reads, before it is supposed that a read would wait, as others did.
const TRIES: u8 = 2;
/// For so long nothing is supposed after it was wrong once, microseconds.
const DOUBT_US: u64 = 10_000_000;
/// Reads that are asked whether they wait, after each nomination that was put off.
const ASKS: u8 = 8;
/// A nomination that was put off is tried again after this long, microseconds; doubled each time,
const AGAIN_US: u64 = 1_000;
/// It is doubled so often.
const DOUBLINGS: u8 = 8;

/// poll or select was called on a connection of this process, or has told of a socket of ours.
static POLLS: AtomicBool = AtomicBool::new(false);
/// A read of a socket of ours has waited in this process.
static WAITED: AtomicBool = AtomicBool::new(false);
/// Ticks before which nothing is supposed.
static DOUBT_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Whether it is known that the program waits for the connection through the hooks.
pub(crate) fn is_seen(conn: Conn, fd: i32) -> bool {
    let seen = conn.block.seen.load(Ordering::Relaxed);
    if seen & state::seen_bit::VOID != 0 {
        if seen & state::seen_bit::READS == 0 {
            DOUBT_UNTIL.store(clock::ticks() + clock::from_us(DOUBT_US), Ordering::Relaxed);
        }
        conn.block.seen.store(state::seen_bit::DOUBTED, Ordering::Relaxed);
        sets::forget_waits(conn, fd);
        return false;
    }
    match sets::waited(conn, fd) {
        Waited::Since => true,
        // As those who take a connection out of a set and add it again for each message.
        Waited::Ever => conn.block.seen.load(Ordering::Relaxed) & state::seen_bit::READS != 0,
        Waited::Never => false,
        Waited::Nowhere => is_seen_elsewhere(conn.block, fd),
    }
}

fn is_seen_elsewhere(block: &Block, fd: i32) -> bool {
    let seen = block.seen.load(Ordering::Relaxed);
    // Who has never read has had nothing to wait for but room, and a write that blocks waits itself.
    let only_writes = block.rx.tcp_bytes.load(Ordering::Relaxed) == 0;
    if seen & (state::seen_bit::READS | state::seen_bit::SUPPOSED) != 0 {
        return true;
    }
    let is_enough =
        only_writes && (seen & state::seen_bit::ROOM != 0 || blocks(fd)) || is_supposed(block, fd);
    if is_enough {
        state::note_seen(block, state::seen_bit::SUPPOSED);
    }
    is_enough
}

/// Whether it may be supposed that calls which never had to wait would.
fn is_supposed(block: &Block, fd: i32) -> bool {
    let seen = block.seen.load(Ordering::Relaxed);
    if seen & state::seen_bit::DOUBTED != 0 || clock::ticks() < DOUBT_UNTIL.load(Ordering::Relaxed) {
        return false;
    }
    let bytes = |half: &Half| half.tcp_bytes.load(Ordering::Relaxed);
    let streams = |one: u64, other: u64| one >= STREAM && one / 8 > other;
    let (sent, read) = (bytes(&block.tx), bytes(&block.rx));
    // A server of files whose requests had come before they were read,
    let sends = streams(sent, read);
    // ... or whose client reads more slowly than they come.
    let reads = streams(read, sent);
    let as_others = WAITED.load(Ordering::Relaxed) && block.unseen.load(Ordering::Relaxed) >= TRIES;
    sends && seen & state::seen_bit::ROOM != 0 || (sends || reads || as_others) && blocks(fd)
}

/// Whether it is likely before the first byte (`--eager`), when nothing can be known yet: a socket that blocks, or a program that waits for its
/// sockets through the hooks, will be waited for so.
pub(crate) fn is_likely(conn: Conn, fd: i32) -> bool {
    match sets::waited(conn, fd) {
        Waited::Since | Waited::Ever => true,
        Waited::Never => false,
        Waited::Nowhere => {
            conn.block.seen.load(Ordering::Relaxed) & !state::seen_bit::DOUBTED != 0
                || blocks(fd)
                || POLLS.load(Ordering::Relaxed)
                || sets::any_waited()
        }
    }
}

fn blocks(fd: i32) -> bool {
    rustix::fs::fcntl_getfl(sys::borrowed(fd)).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
}

/// A nomination is put off: the next reads are asked whether they wait.
pub(crate) fn put_off(block: &Block) {
    let tries = block.unseen.load(Ordering::Relaxed);
    block.unseen.store((tries + 1).min(DOUBLINGS), Ordering::Relaxed);
    block.asks.store(ASKS, Ordering::Relaxed);
    block.retry_at.store(clock::ticks() + clock::from_us(AGAIN_US << tries), Ordering::Relaxed);
}

/// Before a read by TCP with these flags that is to be asked. One that finds nothing and blocks is the program's wait.
pub(crate) fn ask(block: &Block, fd: i32, flags: i32) {
    block.asks.store(block.asks.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    if flags & libc::MSG_DONTWAIT == 0
        && block.nonblock.load(Ordering::Relaxed) == 0
        && sys::unread(fd) == Ok(0)
        // The end of the stream is no bytes either, and who reads it does not wait. Notices make POLLERR stand: that is no end.
        && sys::poll_now(fd, libc::POLLIN) & libc::POLLIN == 0
        && blocks(fd)
    {
        state::note_seen(block, state::seen_bit::READ);
        if !WAITED.load(Ordering::Relaxed) {
            WAITED.store(true, Ordering::Relaxed);
        }
        block.asks.store(0, Ordering::Relaxed);
        // What it brings may be the time for a nomination.
        block.retry_at.store(0, Ordering::Relaxed);
    }
}

/// The peer has taken back what the program left unread without a wait: it may wait past the hooks by now.
pub(crate) fn void(block: &Block) {
    state::note_seen(block, state::seen_bit::VOID);
}

/// poll has told of `n` of `fds`.
#[inline]
pub fn told(fds: &[libc::pollfd], mut n: usize) {
    for one in fds {
        if one.revents != 0 {
            told_of(one.fd, one.revents);
            n = n.saturating_sub(1);
            if n == 0 {
                return;
            }
        }
    }
}

/// poll or select has told of `fd`, with these POLL* bits.
#[inline]
pub fn told_of(fd: i32, events: i16) {
    match table::look(fd) {
        Entry::Conn(conn) => {
            let block = conn.block;
            let mut seen = 0;
            if events & (libc::POLLIN | libc::POLLRDNORM) != 0 {
                seen |= state::seen_bit::TOLD;
            }
            if events & (libc::POLLOUT | libc::POLLWRNORM) != 0
                && block.tx.tcp_bytes.load(Ordering::Relaxed) != 0
            {
                seen |= state::seen_bit::ROOM;
            }
            state::note_seen(block, seen);
        }
        Entry::Socket => {}
        _ => return,
    }
    polls();
}

/// poll or select is called on a connection. The match that a peer waits for (`--eager`) may come while the first such call sleeps.
#[inline]
pub(crate) fn polls() {
    if !POLLS.load(Ordering::Relaxed) {
        POLLS.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use shunpike_shm::arena::Arena;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listening socket");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        (client, listener.accept().expect("its other end").0)
    }

    /// Whether a read of `socket` counts as the program's wait.
    fn is_wait(socket: &TcpStream, flags: i32) -> bool {
        let arena = Arena::create(1).expect("an arena");
        let block = arena.allocate().expect("a block");
        ask(block, socket.as_raw_fd(), flags);
        block.seen.load(Ordering::Relaxed) & state::seen_bit::READ != 0
    }

    #[test]
    fn a_read_that_finds_nothing_and_blocks_is_a_wait() {
        let (mut client, server) = pair();
        assert!(is_wait(&server, 0));
        assert!(!is_wait(&server, libc::MSG_DONTWAIT));
        client.write_all(b"a").expect("sent");
        server.peek(&mut [0]).expect("come");
        assert!(!is_wait(&server, 0));
    }

    #[test]
    fn a_read_that_finds_the_end_of_the_stream_is_no_wait() {
        let (client, mut server) = pair();
        client.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(server.read(&mut [0]).expect("the end"), 0);
        assert!(!is_wait(&server, 0));
    }

    #[test]
    fn notices_that_are_unread_are_no_end() {
        let (client, mut server) = pair();
        let (fd, on) = (client.as_raw_fd(), 1i32);
        // SAFETY: the option's value and the byte live through their calls.
        let sent = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), 4);
            libc::send(fd, b"a".as_ptr().cast(), 1, libc::MSG_ZEROCOPY)
        };
        assert_eq!(sent, 1);
        server.read_exact(&mut [0]).expect("come");
        while sys::poll_now(fd, 0) & libc::POLLERR == 0 {
            std::thread::yield_now();
        }
        assert!(is_wait(&client, 0));
    }
}
