//! This process's session with the broker: one SOCK_SEQPACKET socket, never waited for.
//!
//! There is no thread to read it. The broker bumps a counter in a shared page with each message; hooked
//! calls compare it (one load) and read the socket when it moved.

mod laneless;
mod socket;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use shunpike_shm::Region;
use shunpike_shm::pages::{CQS, KnobPage, PAGE, SessionPage};
use shunpike_shm::region;
use shunpike_wire::Reason;
use shunpike_wire::clc::handshake::LocalDevice;
use shunpike_wire::session::{CONTROL, FromBroker, MAX, ToBroker, VERSION};

use crate::handshakes::Handshakes;
use crate::later::Later;
use crate::look::{LATER, LEFT, LOOK_AT, LOOK_PAUSE_US, look_soon};
use crate::mutex::{Guard, Mutex};
use crate::outbox::Outbox;
use crate::process;
use crate::spares::Spares;
use crate::tls::thread;
use crate::{clock, descriptors, sys, tap};
use shunpike_shm::once::Once;

pub use socket::{Fds, configure};

use socket::{Over, Sent};

/// A broker that is not there is looked for again after this long, microseconds;
const RETRY_US: u64 = 1_000_000;
/// A broker before whom so many wait that nobody can be added, after this long and twice as long each time, with so many doublings at most;
const BUSY_US: u64 = 10_000;
const BUSY_DOUBLINGS: u32 = 6;
/// A broker that is there and lets no session come about is looked for again after twice as long each time, with so many doublings at most.
const DOUBLINGS: u32 = 4;
/// Messages taken from the socket in one go; the rest waits for the next call.
const BATCH: usize = 64;

/// What the floors above do when the broker speaks or is gone, or the process becomes another user's.
pub struct Above {
    /// Nominates what waits for it, and lets go of the memory that nobody looks at any more.
    pub catch_up: fn(&mut Session),
    /// A message came.
    pub heard: fn(),
    /// The broker has welcomed a process that wants its lanes early.
    pub welcomed: fn(&mut Session),
    /// A message on a connection.
    pub take: fn(&mut Session, FromBroker, Fds),
    /// Nothing is answered any more.
    pub unanswered: fn(),
    /// The broker is gone.
    pub gone: fn(&mut Session),
    /// The process is about to become another user's.
    pub changes_user: fn(),
}

static ABOVE: Once<Above> = Once::with(&Above {
    catch_up: |_| {},
    heard: || {},
    welcomed: |_| {},
    take: |_, _, _| {},
    unanswered: || {},
    gone: |_| {},
    changes_user: || {},
});

/// Names them; at start-up, once.
pub(crate) fn attach(above: &'static Above) {
    ABOVE.set(above);
}

fn tell(what: impl FnOnce(&Above)) {
    what(ABOVE.get());
}

/// The session, and what came of it.
pub struct Session {
    socket: Option<OwnedFd>,
    /// Sessions of this process so far.
    pub number: u32,
    /// Set once the broker has welcomed us.
    pub device: Option<LocalDevice>,
    retry_at: u64,
    /// Hellos in a row that came to nothing, at these brokers.
    unheard: u32,
    /// Connects in a row that met a full queue.
    busy: u32,
    asked: u64,
    /// Why there are no lanes to be had, while there are none.
    absence: Reason,
    /// What the broker of a session without lanes was told of our connections.
    told: Option<(u32, u32)>,
    outbox: Outbox,
    /// Handshakes under way.
    pub handshakes: Handshakes,
    /// Connections to be nominated.
    pub later: Later,
    /// DMBs for connections to come.
    pub spares: Spares,
}

static SESSION: Mutex<Session> = Mutex::new(Session {
    socket: None,
    number: 0,
    device: None,
    retry_at: 0,
    unheard: 0,
    busy: 0,
    asked: 0,
    absence: Reason::NoBroker,
    told: None,
    outbox: Outbox::new(),
    handshakes: Handshakes::new(),
    later: Later::new(),
    spares: Spares::new(),
});
/// The session's socket, for those that wait for it without the lock; -1 while there is none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static PAGE_AT: AtomicPtr<SessionPage> = AtomicPtr::new(core::ptr::null_mut());
static SEEN: AtomicU32 = AtomicU32::new(0);
/// The Hello is out and not answered: the counter is not there yet, the socket must be looked at.
static OPENING: AtomicBool = AtomicBool::new(false);
/// Messages wait for room in the socket.
static UNSENT: AtomicBool = AtomicBool::new(false);
/// The longest such pause: a stopped broker costs a busy program a hundred looks a second.
const LOOK_MOST_US: u32 = 10_000;

/// The session, locked; `None` while another thread has it: nobody waits for the broker's business.
pub fn try_lock() -> Option<Guard<'static, Session>> {
    SESSION.try_lock()
}

/// The session, locked. For what must not be skipped: it is held for non-blocking calls only.
pub fn lock() -> Guard<'static, Session> {
    SESSION.lock()
}

/// Reads what the broker has sent, if it has sent something.
#[inline(always)]
pub fn pump_if_news() {
    if has_posts() {
        pump();
    } else if is_look_due() {
        look_unasked();
    }
}

/// Whether `pump_if_news` may have something to do.
#[inline(always)]
pub fn has_news() -> bool {
    has_posts() || is_look_due()
}

/// Whether the broker has sent something since we last read all of it.
#[inline(always)]
fn has_posts() -> bool {
    // SAFETY: null, or a verified mapping of a session page that is never unmapped.
    let page = unsafe { PAGE_AT.load(Ordering::Relaxed).as_ref() };
    // Acquire pairs with the broker's Release: the message is in the socket.
    page.is_some_and(|page| page.posted.load(Ordering::Acquire) != SEEN.load(Ordering::Relaxed))
}

/// Whether there is something to attend to that the broker's counter does not tell of.
#[inline(always)]
fn has_affairs() -> bool {
    OPENING.load(Ordering::Relaxed) || LATER.load(Ordering::Relaxed) || UNSENT.load(Ordering::Relaxed)
}

/// Whether it is time for that.
#[inline(always)]
fn is_look_due() -> bool {
    has_affairs() && clock::ticks() >= LOOK_AT.load(Ordering::Relaxed)
}

/// Attends to it, ever more seldom while that changes nothing.
#[cold]
fn look_unasked() {
    pump();
    note_look();
}

/// The socket was looked at unasked: when the next look is due.
fn note_look() {
    let pause = if has_affairs() { LOOK_PAUSE_US.load(Ordering::Relaxed).max(1) } else { 0 };
    LOOK_PAUSE_US.store((2 * pause).min(LOOK_MOST_US), Ordering::Relaxed);
    LOOK_AT.store(clock::ticks() + clock::from_us(u64::from(pause)), Ordering::Relaxed);
}

/// Reads the session's socket.
#[cold]
pub fn pump() {
    if let Some(mut session) = try_lock() {
        session.read();
    }
}

/// This process is about to become user `uid`. If that is another one, what reaches a private broker then is the session that it has
/// by now, as with open files. (A server's worker, forked by root, that gives up root's rights.) At a broker that
/// serves several users it is that other user, once it opens its session.
pub fn before_becoming(uid: u32) {
    let other = uid != rustix::process::geteuid().as_raw();
    if other {
        // The kernel lets nobody look at its memory from then on (ptrace(2), the dumpable attribute).
        tell(|above| (above.changes_user)());
    }
    if other
        && socket::is_private()
        && process::with_arena(|_| ()).is_some()
        && let Some(mut session) = try_lock()
    {
        session.ready();
    }
}

/// Looks once in a while whether the broker is there still: one that was killed has told nobody. For threads that go to sleep, to whom
/// it makes no difference; what is to be done about it the next call does. Each by its own clock: threads share no line that is written.
pub fn look_in(now: u64) {
    let (looked, second) = (&thread().looked_in, (now / clock::from_us(RETRY_US).max(1)) as u32);
    if second == looked.load(Ordering::Relaxed) {
        return;
    }
    looked.store(second, Ordering::Relaxed);
    if let Some(fd) = socket() {
        if LEFT.load(Ordering::Relaxed) {
            look_soon();
        }
        // Nothing is asked for: POLLHUP comes all the same.
        let mut fds = [libc::pollfd { fd, events: 0, revents: 0 }];
        if sys::poll(&mut fds, Some(0), core::ptr::null()).is_ok_and(|ready| ready > 0) {
            look_soon();
        }
    }
}

/// The session's socket, to wait for news beside something else. Somebody else may read them first.
pub fn socket() -> Option<i32> {
    let fd = SOCKET.load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// Whether there is no session, nor one in the making.
#[inline]
pub fn is_closed() -> bool {
    socket().is_none()
}

/// Whether the broker has yet to welcome us.
pub fn is_opening() -> bool {
    OPENING.load(Ordering::Relaxed)
}

/// Whether messages wait for room in the socket.
pub fn has_unsent() -> bool {
    UNSENT.load(Ordering::Relaxed)
}

/// Whether they wait for what the socket does not tell of: who waits tries again from time to time.
pub fn is_refused() -> bool {
    has_unsent() && socket::is_refused()
}

impl Session {
    /// The device, once the broker has welcomed us; else greets it, where it has not been tried just now.
    pub fn ready(&mut self) -> Option<LocalDevice> {
        if self.device.is_none() {
            if self.socket.is_none() && clock::ticks() >= self.retry_at {
                self.greet();
            }
            if self.is_laneless() {
                self.ask_without_lanes();
            } else if self.socket.is_some() && clock::ticks() >= LOOK_AT.load(Ordering::Relaxed) {
                self.read();
                note_look();
            }
        }
        self.device
    }

    /// Where `ready` said no: when it may say something else, ticks.
    pub fn ready_at(&self) -> u64 {
        if self.socket.is_some() && !self.is_laneless() {
            LOOK_AT.load(Ordering::Relaxed)
        } else {
            self.retry_at
        }
    }

    /// Says hello, and when that may be done again, should nothing come of it.
    fn greet(&mut self) {
        let there = socket::brokers_there();
        if self.asked != there {
            // Another broker than the one that let nothing come about.
            (self.asked, self.unheard) = (there, 0);
        }
        let opened = self.open();
        let pause = match opened {
            Ok(()) => RETRY_US << self.unheard.min(DOUBLINGS),
            Err(Errno::AGAIN) => BUSY_US << self.busy.min(BUSY_DOUBLINGS),
            Err(_) => RETRY_US,
        };
        self.unheard = if opened.is_ok() { self.unheard + 1 } else { 0 };
        self.busy = if opened == Err(Errno::AGAIN) { self.busy + 1 } else { 0 };
        self.retry_at = clock::ticks() + clock::from_us(pause);
        if opened.is_err() {
            self.close();
        }
    }

    /// Where `ready` said no: why, for the tools.
    pub fn absence(&self) -> Reason {
        self.absence
    }

    /// A socket of a broker, which is one that may have what we give it.
    fn connect(&mut self) -> Result<OwnedFd, Errno> {
        socket::connect().inspect_err(|errno| {
            self.absence = match *errno {
                Errno::PERM => Reason::BrokerForeign,
                Errno::MFILE => Reason::NoDescriptors,
                _ => Reason::NoBroker,
            };
        })
    }

    fn open(&mut self) -> Result<(), Errno> {
        self.absence = Reason::NoDescriptors;
        // First: without it there is nothing to say, nor descriptors for the rest.
        process::with_arena(|_| ()).ok_or(Errno::MFILE)?;
        let socket = self.connect()?;
        SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
        self.socket = Some(socket);
        self.number = self.number.wrapping_add(1);
        let comm = sys::thread_name();
        // It is reached: until it answers, a connection has asked for nothing.
        self.absence = Reason::NotNominated;
        let hello = ToBroker::Hello { control: CONTROL, version: VERSION, doorbells: process::cqs(), comm };
        let mut bells = [-1; CQS];
        let bells = &mut bells[..usize::from(process::cqs())];
        for (cq, bell) in bells.iter_mut().enumerate() {
            let made = process::doorbell(cq as u8).ok_or(Errno::MFILE);
            *bell = made.inspect_err(|_| self.absence = Reason::NoDescriptors)?;
        }
        let sent = process::with_arena_fd(|arena| {
            let mut fds = [arena; 1 + CQS];
            for (to, bell) in fds.iter_mut().skip(1).zip(&*bells) {
                // SAFETY: our own doorbells, open for the life of the process.
                *to = unsafe { BorrowedFd::borrow_raw(*bell) };
            }
            self.offer(&hello, &fds[..=bells.len()])
        });
        OPENING.store(true, Ordering::Relaxed);
        LOOK_PAUSE_US.store(0, Ordering::Relaxed);
        LOOK_AT.store(0, Ordering::Relaxed);
        if sent == Some(true) { Ok(()) } else { Err(Errno::PIPE) }
    }

    /// Sends a message, now or when the broker's socket has room again. False when the broker is gone, or so far behind
    /// that its session is ended.
    pub fn send(&mut self, message: &ToBroker) -> bool {
        self.send_with(message, None)
    }

    /// Sends a message with a descriptor.
    pub fn send_with(&mut self, message: &ToBroker, fd: Option<BorrowedFd<'_>>) -> bool {
        if self.offer(message, fd.as_slice()) {
            return true;
        }
        if self.socket.is_none() || self.is_laneless() {
            return false;
        }
        // Only a stopped broker is so far behind. It lets go of all that a session held when that ends.
        let kept = self.outbox.keep(message, fd).is_ok();
        UNSENT.store(kept, Ordering::Relaxed);
        if !kept {
            self.close();
        }
        kept
    }

    /// Sends a message if that is possible at once and nothing waits before it.
    pub fn offer(&mut self, message: &ToBroker, fds: &[BorrowedFd<'_>]) -> bool {
        // Its number may mean something else there.
        if self.is_laneless() && !matches!(message, ToBroker::Lanes { .. }) {
            return false;
        }
        let mut bytes = [0; MAX];
        let Ok(len) = message.encode(&mut bytes) else { return false };
        self.flush() && self.transmit(&bytes[..len], fds)
    }

    /// Sends what waits; whether nothing does any more.
    fn flush(&mut self) -> bool {
        let mut bytes = [0; MAX];
        while let Some((len, fd)) = self.outbox.first(&mut bytes) {
            let Some(socket) = &self.socket else { return false };
            match socket::transmit(socket.as_fd(), &bytes[..len], fd.as_slice()) {
                Sent::Yes => {
                    self.outbox.sent();
                    UNSENT.store(!self.outbox.is_empty(), Ordering::Relaxed);
                }
                Sent::Later => return false,
                Sent::Never => {
                    self.ended();
                    return false;
                }
            }
        }
        true
    }

    fn transmit(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let Some(socket) = &self.socket else { return false };
        let sent = socket::transmit(socket.as_fd(), bytes, fds);
        if sent == Sent::Never {
            self.ended();
        }
        sent == Sent::Yes
    }

    /// The socket takes no more: not where a child of vfork() has closed it for itself, on our memory.
    fn ended(&mut self) {
        if sys::pid() == process::pid() {
            self.close();
        }
    }

    fn read(&mut self) {
        if self.socket.is_none() {
            // Back to a broker, with the lanes that we have.
            self.ready();
        }
        self.read_all();
        if self.device.is_some() && LATER.swap(false, Ordering::Relaxed) {
            tell(|above| (above.catch_up)(self));
        }
        if self.is_laneless() && LATER.load(Ordering::Relaxed) {
            self.see_lanes_end();
        }
    }

    fn read_all(&mut self) {
        // SAFETY: as in `has_posts`.
        let page = unsafe { PAGE_AT.load(Ordering::Relaxed).as_ref() };
        let posted = page.map(|page| page.posted.load(Ordering::Acquire));
        self.flush();
        for _ in 0..BATCH {
            let Some((message, fds)) = self.receive() else {
                if let Some(posted) = posted {
                    SEEN.store(posted, Ordering::Relaxed);
                }
                return;
            };
            // A later version's, that it says beside what we know.
            let Some(message) = message else { continue };
            tell(|above| (above.heard)());
            match message {
                FromBroker::Welcome(welcome) if is_opening() => {
                    // One without a control protocol goes now.
                    if welcome.control == 0 {
                        self.absence = Reason::VersionDiffers;
                        return self.close();
                    }
                    if self.welcome(&fds).is_none() {
                        return self.close();
                    }
                    self.unheard = 0;
                    if welcome.version != VERSION {
                        self.begin_without_lanes();
                        continue;
                    }
                    let node = rustix::system::uname();
                    self.device = Some(LocalDevice::new(&welcome, node.nodename().to_bytes()));
                    if process::eager() {
                        tell(|above| (above.welcomed)(self));
                    }
                }
                FromBroker::Welcome(_) => return self.close(),
                message if self.is_laneless() => self.take_control(message, fds),
                message => tell(|above| (above.take)(self, message, fds)),
            }
        }
    }

    /// Maps the pages that come with a Welcome.
    fn welcome(&mut self, fds: &Fds) -> Option<()> {
        let map = |fd: &Option<OwnedFd>| {
            let fd = fd.as_ref()?;
            region::verify(fd.as_fd(), PAGE).ok()?;
            Region::map_readable(fd.as_fd(), PAGE).ok()
        };
        let page = map(&fds[0])?;
        let knobs = map(&fds[1])?;
        SEEN.store(0, Ordering::Relaxed);
        PAGE_AT.store(page.base().cast::<SessionPage>(), Ordering::Release);
        process::follow(knobs.base().cast::<KnobPage>());
        OPENING.store(false, Ordering::Relaxed);
        Some(())
    }

    /// The next message, which is `None` in its turn where its type is not known.
    fn receive(&mut self) -> Option<(Option<FromBroker>, Fds)> {
        let received = socket::receive(self.socket.as_ref()?.as_fd());
        received.unwrap_or_else(|Over| {
            self.close();
            None
        })
    }

    /// The broker is gone: open lanes go on, new connections stay TCP until it is there again.
    fn close(&mut self) {
        SOCKET.store(-1, Ordering::Relaxed);
        if let Some(socket) = self.socket.take() {
            descriptors::close(socket);
        }
        self.device = None;
        self.outbox.clear();
        UNSENT.store(false, Ordering::Relaxed);
        PAGE_AT.store(core::ptr::null_mut(), Ordering::Relaxed);
        OPENING.store(false, Ordering::Relaxed);
        tap::stop_all();
        tell(|above| (above.unanswered)());
        self.spares.clear();
        tell(|above| (above.gone)(self));
        // The next broker has to hear of our lanes, whose connections have nothing to ask for.
        let comes_back = laneless::has_lanes() || !self.later.is_empty();
        LATER.store(comes_back, Ordering::Relaxed);
    }
}

/// Before fork(): nobody is in the middle of anything with the broker.
pub fn hold_across_fork() {
    SESSION.hold();
    socket::hold_across_fork();
}

/// After it, in the parent and in the child.
pub fn let_go_after_fork() {
    socket::let_go_after_fork();
    SESSION.let_go();
}

/// Ends the session for good: no message of the broker is looked for any more.
pub fn end() {
    let mut session = lock();
    session.retry_at = u64::MAX;
    session.close();
    LATER.store(false, Ordering::Relaxed);
}

/// In a forked child: the session is the parent's, nothing is closed towards the broker but our copy.
pub fn after_fork_in_child() {
    let mut session = SESSION.lock();
    session.handshakes.clear();
    session.later.clear();
    session.spares.clear();
    session.device = None;
    session.retry_at = 0;
    session.unheard = 0;
    session.absence = Reason::NoBroker;
    session.outbox.clear();
    UNSENT.store(false, Ordering::Relaxed);
    LOOK_PAUSE_US.store(0, Ordering::Relaxed);
    LOOK_AT.store(0, Ordering::Relaxed);
    SOCKET.store(-1, Ordering::Relaxed);
    LATER.store(false, Ordering::Relaxed);
    if let Some(socket) = session.socket.take() {
        descriptors::close(socket);
    }
    PAGE_AT.store(core::ptr::null_mut(), Ordering::Relaxed);
    OPENING.store(false, Ordering::Relaxed);
}

/// Gives a descriptor taken from a message a high number; -1 when there is none left.
pub fn keep(fd: Option<OwnedFd>) -> i32 {
    use rustix::fd::IntoRawFd;
    fd.and_then(|fd| descriptors::internal(fd).ok()).map_or(-1, |fd| fd.into_raw_fd())
}

/// A descriptor of ours, for closing.
pub fn close_raw(fd: i32) {
    descriptors::close_number(fd);
}
