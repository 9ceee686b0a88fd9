//! One end of a connection on its lanes, and a peer that writes any value to any word of both at any time: between our
//! calls, and (built for the fuzzer, `--cfg fuzzing`) between any two looks of one call.
//!
//! Our end is the real thing: `rx::receive` and `tx::send` on a TCP socket. The peer is a mapping of both DMBs and the
//! socket's other end. The DMBs lie between pages that may not be touched. Asked after each step: nothing was written
//! that is not ours to write, no cursor of ours went back, the window held, and a call that found nothing leaves
//! nothing behind that would call for another look at once, since that would spin. As long as the peer has kept to the
//! rules, the bytes are those that were sent.

use crate::script::Script;
use rustix::fd::AsRawFd;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use shunpike_core::call::Outcome;
use shunpike_core::table::{self, Conn};
use shunpike_core::tls::critical;
use shunpike_core::{Errno, above, bufs::Bufs, closing, conn, life, reuse, rx, session, state, tx};
use shunpike_shm::arena::{Held, MOVES, TxHalf, mode};
use shunpike_shm::lane::{Cursor, Dmb, FIRST_WINDOW, HEADER, MIN_WINDOW, Side, Window, Words};
use shunpike_shm::lifecycle::Event;
use shunpike_shm::region;
use shunpike_wire::Reason;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// Size class of the DMBs: rings of 64 KiB, so that windows can grow.
const CLASS: u8 = 2;
const PAGE: usize = 4096;
/// Steps of one input.
const STEPS: usize = 200;
/// Behind the words, in the header's page: nobody writes there.
const CANARY: u8 = 0xa5;

/// One input.
pub fn run(bytes: &[u8]) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| life::start(life::Options::default()));
    // Of tests in threads one at a time: a world looks at its block once more after it was freed.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new();
    let mut script = Script::new(bytes);
    for _ in 0..STEPS {
        let Some(op) = script.next() else { break };
        world.step(op, &mut script);
        world.check();
    }
    world.end();
}

/// A DMB as both see it: our mapping between guards, and the peer's.
struct Memory {
    guards: usize,
    ours: usize,
    theirs: usize,
}

const LEN: usize = Dmb::len(CLASS);
/// Where the words are, as in a DMB with some token; and where the header goes on behind them.
const WORDS: usize = Dmb::words_at(5);
const BEHIND: usize = WORDS + size_of::<Words>();

impl Memory {
    fn new() -> Self {
        let fd = region::create("fuzzed-dmb", LEN).expect("memory");
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: fresh mappings touch no memory of ours; the second one replaces the middle of the first.
        let (guards, theirs) = unsafe {
            let guards =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), LEN + 2 * PAGE, both, flags).expect("room");
            rustix::mm::mprotect(guards, LEN + 2 * PAGE, MprotectFlags::empty()).expect("guards");
            let middle = guards.byte_add(PAGE);
            rustix::mm::mmap(middle, LEN, both, MapFlags::SHARED | MapFlags::FIXED, &fd, 0)
                .expect("a mapping");
            let theirs = rustix::mm::mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &fd, 0)
                .expect("a mapping");
            theirs.cast::<u8>().write_bytes(CANARY, WORDS);
            theirs.cast::<u8>().add(BEHIND).write_bytes(CANARY, HEADER - BEHIND);
            (guards as usize, theirs as usize)
        };
        Self { guards, ours: guards + PAGE, theirs }
    }

    /// The peer's word at `at`: not by `Words`, whose looks are ours.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned, within the mapping, which lives as long as `self`; atomics on both sides.
        unsafe { &*((self.theirs + WORDS + at) as *const AtomicU64) }
    }

    /// A byte of the stream, as the peer has it at `offset`, where all before `cons` was read.
    fn byte(&self, offset: u64, window: Window, cons: u64) -> *mut u8 {
        let is_first = window == FIRST || window.moves() && offset < cons + window.ahead(cons);
        let (at, size) = if is_first {
            (PAGE - FIRST_WINDOW as usize, FIRST_WINDOW.into())
        } else {
            (HEADER, window.size())
        };
        (self.theirs + at + (offset & (size - 1)) as usize) as *mut u8
    }

    fn is_intact(&self) -> bool {
        [(0, WORDS), (BEHIND, HEADER - BEHIND)].into_iter().all(|(at, len)| {
            // SAFETY: within the mapping; nobody writes there, which is what is asked.
            let bytes = unsafe { std::slice::from_raw_parts((self.theirs + at) as *const u8, len) };
            bytes.iter().all(|byte| *byte == CANARY)
        })
    }
}

impl Memory {
    /// It is the DMB of this direction's lane.
    fn becomes(&self, held: impl Held) -> &'static Words {
        let half = held.half();
        half.generation.store(held, 1, Ordering::Relaxed);
        for word in [&half.cursor, &half.other, &half.token] {
            word.store(held, 0, Ordering::Relaxed);
        }
        let ring = (LEN - HEADER) as u32;
        half.ring.store(held, ring, Ordering::Relaxed);
        half.dmb.store(held, Dmb::address_of(self.ours + WORDS, ring), Ordering::Relaxed);
        state::whole_dmb(half).expect("just set").words()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours was given back with the lane, but for its guards; nobody else knows the peer's mapping.
        unsafe {
            let _ = rustix::mm::munmap(self.guards as *mut _, PAGE);
            let _ = rustix::mm::munmap((self.guards + PAGE + LEN) as *mut _, PAGE);
            let _ = rustix::mm::munmap(self.theirs as *mut _, LEN);
        }
    }
}

const PROD: usize = Words::PROD_AT;
const WINDOW: usize = Words::WINDOW_AT;
/// The window that a lane begins with.
const FIRST: Window = Window(FIRST_WINDOW as u64);
const CONS: usize = Words::CONS_AT;
const START: usize = 2 * 128;
const RWAIT: usize = 3 * 128;
const WWAIT: usize = 4 * 128;
const LENT: usize = Words::LENT_AT;
const ANSWER: usize = Words::LOANS_AT + 128;
/// The first of the loans: its place, its length, where it is in the sender, its state.
const SLOT: usize = Words::LOANS_AT + 2 * 128;

/// What the last step left, to compare with.
#[derive(Copy, Clone, Default)]
struct Before {
    cursor: u64,
    other: u64,
}

struct World {
    conn: Conn,
    fd: i32,
    own: Option<TcpStream>,
    peer: TcpStream,
    /// Towards us, and from us.
    rx: Memory,
    tx: Memory,
    /// Whether the peer has kept to the rules towards us so far, and has made no use of TCP.
    honest: bool,
    /// Bytes that the peer has sent, we have received, we have sent, the peer has received.
    sent: u64,
    got: u64,
    put: u64,
    taken: u64,
    before: [Before; 2],
}

/// The `n`th byte of a stream, of either direction.
fn pattern(n: u64) -> u8 {
    (n ^ n >> 8 ^ n >> 16) as u8
}

impl World {
    fn new() -> Self {
        thread_local! {
            static LISTENER: TcpListener = TcpListener::bind("127.0.0.1:0").expect("a port");
        }
        let (own, peer) = LISTENER.with(|listener| {
            let own = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
            (own, listener.accept().expect("accepts").0)
        });
        for socket in [&own, &peer] {
            rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).expect("lingers");
            socket.set_nonblocking(true).expect("does not block");
        }
        let fd = own.as_raw_fd();
        conn::watch(fd, false, true, false);
        let conn = table::conn(fd).expect("a block is free");
        let (rx, tx) = (Memory::new(), Memory::new());
        // As after a handshake (upgrade.rs): our DMB is granted, the peer's is open.
        let block = conn.block;
        {
            let (receiving, sending) = (block.rx.lock(critical()), block.tx.lock(critical()));
            let (receives, sends) = (receiving.held(), sending.held());
            let words = [rx.becomes(receives), tx.becomes(sends)];
            for word in [&receives.own().peeked, &receives.own().start, &sends.own().start] {
                word.store(0, Ordering::Relaxed);
            }
            words[0].grant(1);
            receives.mode.store(receives, mode::GRANTED, Ordering::SeqCst);
            words[1].set_reach((LEN - HEADER) as u64);
            words[1].grant(1);
            sends.window.store(sends, FIRST_WINDOW, Ordering::Relaxed);
            assert!(words[1].begin(1, 0, FIRST.0));
            sends.mode.store(sends, mode::LANE, Ordering::SeqCst);
        }
        block.life.on(Event::Open);
        rx.word(WINDOW).store(FIRST.0, Ordering::Relaxed);
        let (sent, got, put, taken) = (0, 0, 0, 0);
        let before = [Before::default(); 2];
        Self { conn, fd, own: Some(own), peer, rx, tx, honest: true, sent, got, put, taken, before }
    }

    fn step(&mut self, op: u8, script: &mut Script<'_>) {
        match op % 16 {
            0..=2 => self.receive(script),
            3..=5 => self.send(script),
            6 => self.look(),
            7 => self.produce(script),
            8 => self.consume(script),
            9 => self.begin(),
            10 | 11 => self.strike(script),
            12 => self.plan(script),
            13 => self.flags(script),
            14 => self.by_tcp(script),
            _ => self.of_our_own(script),
        }
        rest();
    }

    /// The program reads. What it gets is what was sent, as long as the peer was honest.
    fn receive(&mut self, script: &mut Script<'_>) {
        let (asked, flags) =
            (script.short() % 40_000, script.pick(&[0, 0, 0, libc::MSG_PEEK, libc::MSG_WAITALL]));
        let planned = is_planned();
        let mut buffer = vec![0; asked];
        let iov = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: asked }];
        let (fd, flags) = (self.fd, flags | libc::MSG_DONTWAIT);
        // SAFETY: the buffer is as long as it says.
        let real = || unsafe { libc::recv(fd, iov[0].iov_base, asked, flags) };
        match result(rx::receive(self.conn, fd, &iov, flags, real)) {
            Ok(n) => {
                assert!(n <= asked, "{n} of {asked}");
                let expected = buffer[..n].iter().zip(self.got..).all(|(byte, at)| *byte == pattern(at));
                assert!(!self.honest || expected, "other bytes than were sent");
                if flags & libc::MSG_PEEK == 0 {
                    self.got += n as u64;
                }
                assert!(!self.honest || self.got <= self.sent, "more than was sent");
            }
            Err(Errno::AGAIN) => {
                assert!(!self.honest || self.got == self.sent || !self.is_begun(), "something is there");
                // A thread that waits would look again at once, and for ever.
                let half = &self.conn.block.rx;
                let _critical = critical();
                let on_lane = [mode::LANE, mode::GRANTED].contains(&half.mode.load(Ordering::Relaxed));
                assert!(planned || !on_lane || !rx::has_news(half), "it would spin");
            }
            Err(errno) => self.is_refusal(errno),
        }
    }

    fn is_begun(&self) -> bool {
        self.conn.block.rx.mode.load(Ordering::Relaxed) == mode::LANE
    }

    /// The program writes.
    fn send(&mut self, script: &mut Script<'_>) {
        let n = script.short() % 40_000;
        let planned = is_planned();
        let bytes: Vec<u8> = (self.put..self.put + n as u64).map(pattern).collect();
        let iov = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: n }];
        let (fd, flags) = (self.fd, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the buffer is as long as it says.
        let real = |flags| unsafe { libc::send(fd, iov[0].iov_base, n, flags) };
        let source = shunpike_core::source::Source::Memory(Bufs::new(&iov));
        match result(tx::send(self.conn, fd, source, flags, real)) {
            Ok(sent) => {
                assert!(sent <= n, "{sent} of {n}");
                self.put += sent as u64;
            }
            Err(Errno::AGAIN) => {
                let half = &self.conn.block.tx;
                let _critical = critical();
                let on_lane = half.mode.load(Ordering::Relaxed) == mode::LANE;
                assert!(planned || !on_lane || !tx::has_room(half), "it would spin");
            }
            Err(errno) => self.is_refusal(errno),
        }
    }

    /// TCP's own errors, and none other.
    fn is_refusal(&self, errno: Errno) {
        let known = [Errno::CONNRESET, Errno::PIPE, Errno::NOTCONN, Errno::TIMEDOUT];
        assert!(known.contains(&errno), "{errno}");
        assert!(!self.honest, "an honest peer is no reason for {errno}");
    }

    /// What poll(), epoll and FIONREAD would ask. Where they tell of bytes, a read does not find none.
    fn look(&mut self) {
        let planned = is_planned();
        let _ = conn::unsent_bytes(self.conn, self.fd);
        let _ = conn::readable_bytes(self.conn, self.fd);
        if !rx::readable(self.conn, self.fd) || planned {
            return;
        }
        let mut byte = 0_u8;
        let iov = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let (fd, flags) = (self.fd, libc::MSG_DONTWAIT | libc::MSG_PEEK);
        // SAFETY: one byte.
        let real = || unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) };
        let peeked = result(rx::receive(self.conn, fd, &iov, flags, real));
        assert_ne!(peeked, Err(Errno::AGAIN), "it was said to be readable");
    }

    /// The peer sends as it should.
    fn produce(&mut self, script: &mut Script<'_>) {
        let (prod, cons) = (Cursor(self.load(&self.rx, PROD)), Cursor(self.load(&self.rx, CONS)));
        let mut window = Window(self.load(&self.rx, WINDOW));
        if self.honest && window == FIRST && script.short().is_multiple_of(4) {
            let (size, is_read) = (MIN_WINDOW.into(), prod.offset() == cons.offset());
            window = if is_read { Window(size) } else { Window::moving(size, prod.offset()) };
        } else if self.honest && window.moves() && window.ahead(cons.offset()) == 0 {
            window = Window(window.size());
        }
        let n = (script.short() as u64).min(room(window, cons.offset(), prod.offset()).unwrap_or(0));
        if prod.has(15) || cons.has(15) || n == 0 || !self.honest {
            return;
        }
        self.rx.word(WINDOW).store(window.0, Ordering::Relaxed);
        for at in 0..n {
            // SAFETY: within the ring; what is not published is the sender's to write.
            unsafe {
                self.rx
                    .byte(prod.offset() + at, window, cons.offset())
                    .write_volatile(pattern(self.sent + at))
            };
        }
        self.sent += n;
        self.rx.word(PROD).store(prod.plus(n).0, Ordering::Release);
    }

    /// The peer reads as it should; what it finds is what we sent.
    fn consume(&mut self, script: &mut Script<'_>) {
        let (prod, cons) = (Cursor(self.load(&self.tx, PROD)), Cursor(self.load(&self.tx, CONS)));
        let window = Window(self.load(&self.tx, WINDOW));
        let unread = prod.offset().wrapping_sub(cons.offset());
        if !self.honest || cons.has(15) {
            return;
        }
        assert!(room(window, cons.offset(), prod.offset()).is_some(), "{unread} in {window:?}");
        let n = (script.short() as u64).min(unread);
        for at in 0..n {
            // SAFETY: within the ring; what is published is the receiver's to read.
            let byte = unsafe { self.tx.byte(cons.offset() + at, window, cons.offset()).read_volatile() };
            assert_eq!(byte, pattern(self.taken + at), "other bytes than were sent");
        }
        self.taken += n;
        self.tx.word(CONS).store(cons.plus(n).0, Ordering::Release);
    }

    /// The peer's lane begins, where TCP stands.
    fn begin(&mut self) {
        if self.honest {
            self.rx.word(START).store(Cursor::new(1, 0).0, Ordering::Release);
        }
    }

    /// A word, and what is written there: near what stands there, or anything.
    fn value(&self, script: &mut Script<'_>) -> (&'static str, usize, u64) {
        let (lane, at) = script.pick(&[
            ("rx", PROD),
            ("rx", WINDOW),
            ("rx", CONS),
            ("rx", START),
            ("tx", PROD),
            ("tx", CONS),
            ("tx", WINDOW),
            ("rx", RWAIT),
            ("tx", WWAIT),
            ("tx", START),
            ("tx", RWAIT),
            ("rx", LENT),
            ("rx", SLOT),
            ("rx", SLOT + 8),
            ("rx", SLOT + 16),
            ("rx", SLOT + 24),
            ("tx", ANSWER),
            ("tx", LENT),
        ]);
        let memory = if lane == "rx" { &self.rx } else { &self.tx };
        let stands = self.load(memory, at);
        let value = match script.below(8) {
            0 => script.word(),
            1 => stands | 1 << (script.byte() % 64),
            2 => stands ^ 1 << (script.byte() % 64),
            3 => stands.wrapping_add((script.short() as u64) << 4),
            4 => stands.wrapping_sub((script.short() as u64) << 4),
            5 => {
                Cursor::new(script.below(3) as u32, script.word() % (1 << 18)).0
                    | u64::from(script.byte() & 15)
            }
            6 => 1 << (script.byte() % 64),
            _ => stands & !15 | u64::from(script.byte() & 15),
        };
        (lane, at, value)
    }

    /// The peer writes what it likes, now.
    fn strike(&mut self, script: &mut Script<'_>) {
        let (lane, at, value) = self.value(script);
        let memory = if lane == "rx" { &self.rx } else { &self.tx };
        memory.word(at).store(value, Ordering::SeqCst);
        self.honest = false;
    }

    /// The peer writes what it likes, in the middle of the next call.
    #[cfg(fuzzing)]
    fn plan(&mut self, script: &mut Script<'_>) {
        use shunpike_shm::hostile::{Strike, plan};
        for _ in 0..=script.below(4) {
            let (lane, at, value) = self.value(script);
            let word = std::ptr::from_ref(if lane == "rx" { self.rx.word(at) } else { self.tx.word(at) });
            // SAFETY: `rest` forgets it after the call, and the mapping is there until the end.
            let store = Box::new(move || unsafe { &*word }.store(value, Ordering::SeqCst));
            plan(Strike { after: script.byte().into(), store });
        }
        self.honest = false;
        let op = script.byte() % 7;
        PLANNED.set(true);
        match op {
            0..=2 => self.receive(script),
            3..=5 => self.send(script),
            _ => self.look(),
        }
    }

    #[cfg(not(fuzzing))]
    fn plan(&mut self, script: &mut Script<'_>) {
        self.strike(script);
    }

    /// The peer ends or stops a lane as it may at any time, or takes back.
    fn flags(&mut self, script: &mut Script<'_>) {
        let (lane, at, flags) = script.pick(&[
            ("rx", PROD, Cursor::END),
            ("tx", PROD, Cursor::STOP),
            ("tx", PROD, Cursor::STOP | Cursor::LEAVE),
            ("rx", CONS, Cursor::TAKEN),
        ]);
        let memory = if lane == "rx" { &self.rx } else { &self.tx };
        memory.word(at).fetch_or(flags, Ordering::SeqCst);
        self.honest = false;
    }

    /// Bytes that no lane announced, and TCP's own ends.
    fn by_tcp(&mut self, script: &mut Script<'_>) {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        match script.below(8) {
            0 => drop(self.peer.shutdown(std::net::Shutdown::Write)),
            1 => drop(self.peer.shutdown(std::net::Shutdown::Both)),
            n => drop(rustix::net::send(&self.peer, &[7; 8][..n], flags)),
        }
        self.honest = false;
    }

    /// What else our side may do of its own accord.
    fn of_our_own(&mut self, script: &mut Script<'_>) {
        let (conn, fd) = (self.conn, self.fd);
        match script.below(8) {
            0 => {
                conn::revoke(conn, fd, Reason::Revoked);
                above::settle(conn, fd);
            }
            1 => closing::stop(conn),
            2 => drop(tx::overflow(conn, fd)),
            3 => tx::attend(conn, fd),
            4 => rx::tcp_news(conn, fd),
            5 | 6 => {
                for (half, side) in conn.block.halves().into_iter().zip([Side::Readers, Side::Writers]) {
                    let _critical = critical();
                    if let Some(dmb) = state::whole_dmb(half) {
                        shunpike_core::wait::arm(half, dmb.words(), side, 1);
                        shunpike_core::wait::notify(conn.block, dmb.words(), side);
                    }
                }
                return;
            }
            _ => {
                conn::shutdown(fd, libc::SHUT_RD);
                conn::shut_down(fd, libc::SHUT_RD);
            }
        }
        // Towards us the lane ends, and what comes then comes by TCP, which an honest peer would do its part for.
        self.honest = false;
    }

    fn load(&self, memory: &Memory, at: usize) -> u64 {
        memory.word(at).load(Ordering::SeqCst)
    }

    fn check(&mut self) {
        assert!(self.rx.is_intact() && self.tx.is_intact(), "the header was written to");
        let block = self.conn.block;
        for (half, before) in block.halves().into_iter().zip(&mut self.before) {
            let now = Before {
                cursor: half.cursor.load(Ordering::Relaxed),
                other: half.other.load(Ordering::Relaxed),
            };
            assert!(now.cursor >= before.cursor, "our own cursor went back");
            assert!(now.other >= before.other, "the other's cursor went back");
            *before = now;
        }
        let [rx, _] = self.before;
        // What was accepted as there to be read is in the ring, whatever the window was said to be.
        let unread = rx.other.saturating_sub(rx.cursor);
        let on_lane = block.rx.mode.load(Ordering::Relaxed) == mode::LANE;
        assert!(!on_lane || unread <= (LEN - HEADER) as u64, "{unread} unread");
        Self::check_sender(&block.tx);
    }

    /// What we sent and the peer has not read fits into the window, by all that it may have said.
    fn check_sender(half: &TxHalf) {
        if half.mode.load(Ordering::Relaxed) != mode::LANE {
            return;
        }
        let (cursor, other) = (half.cursor.load(Ordering::Relaxed), half.other.load(Ordering::Relaxed));
        let word = half.window.load(Ordering::Relaxed);
        let (window, moves) = (word & !MOVES, word & MOVES != 0);
        assert!(window.is_power_of_two() && window as usize <= LEN - HEADER, "{window}");
        let until = if moves { half.moved.load(Ordering::Relaxed) } else { 0 };
        assert!(
            until <= cursor && until.saturating_sub(other) <= FIRST_WINDOW.into(),
            "{other}, {until}, {cursor}"
        );
        assert!(cursor - other.max(until) <= u64::from(window), "{cursor} - {other}, {until} > {window}");
    }

    /// The program closes; all that the lanes had is let go.
    fn end(mut self) {
        let block = self.conn.block;
        conn::close(self.fd);
        self.own = None;
        assert_eq!(block.halves().map(|half| half.dmb.load(Ordering::Relaxed)), [0, 0]);
        reuse::sweep(&mut session::lock());
    }
}

/// How much fits behind `prod`; `None` where no such window can be.
fn room(window: Window, cons: u64, prod: u64) -> Option<u64> {
    let ahead = if window.moves() { window.ahead(cons) } else { 0 };
    let is_lawful = window.size().is_power_of_two()
        && window.size() <= (LEN - HEADER) as u64
        && ahead <= FIRST_WINDOW.into();
    window.size().checked_sub(prod.wrapping_sub(cons + ahead)).filter(|_| is_lawful)
}

fn result(outcome: Outcome) -> Result<usize, Errno> {
    match outcome {
        Outcome::Ours(result) => result,
        Outcome::Libc(n) => usize::try_from(n).map_err(|_| {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Errno::from_raw_os_error(errno)
        }),
    }
}

thread_local! {
    /// Whether the call that is made may find the words changed on its way.
    static PLANNED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn is_planned() -> bool {
    PLANNED.get()
}

/// After a step: what was planned and did not come will not.
fn rest() {
    PLANNED.set(false);
    #[cfg(fuzzing)]
    shunpike_shm::hostile::rest();
}
