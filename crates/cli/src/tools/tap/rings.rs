//! The rings of all processes that are tapped, read together and put in order.
//!
//! A record is reserved before its bytes are published, and its time is taken in between. So what a record is the cause of has a
//! later time and is reserved later, in whatever ring: once all rings are read up to where they stood after some moment, all
//! records with times up to that moment are known, and can be shown in the order of their times.

use crate::error::Error;
use crate::socket::Tried;
use crate::tools::pids::Pids;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::{ClockId, clock_gettime};
use shunpike_broker::TapSession;
use shunpike_broker::text::plain_name;
use shunpike_shm::tap::{Next, Nonsense, Reader, Segment, len, state};
use shunpike_wire::session::FromBroker;
use std::io;
use std::path::PathBuf;

/// Rings that the broker has in hand for programs that are still to come.
const SPARE: usize = 4;
/// Most processes.
const MOST: usize = 512;
/// Memory of all rings of the size that was asked for, bytes. The others, of which there may be [`MOST`], are as small as can be.
const LARGE: usize = 512 << 20;
/// How long a process may take to finish a record before others are shown without it, nanoseconds.
const PATIENCE: u64 = 200_000_000;
/// Most memory of what waits to be put in order, bytes. Beyond, the rings keep what is in them, and what waits is shown as it is.
const WAITING: usize = 64 << 20;

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A process that is tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// 0: in a pid namespace that the broker cannot see into.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: String,
}

/// One that was seen, with its bytes.
pub struct Seen {
    /// Which process's ring, as [`News::Began`] numbers them.
    pub ring: u32,
    /// What.
    pub segment: Segment,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Records of this ring that were lost before it.
    pub dropped: u64,
}

impl Seen {
    /// Memory that it takes, bytes: segments without any cost, too.
    fn costs(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

/// What is to be told of processes.
pub enum News {
    /// The process is tapped from now on.
    Began { ring: u32, process: Process },
    /// It does not want to be looked into by its own user.
    Guarded { ring: u32 },
    /// It could not.
    Failed { ring: u32 },
    /// It has written nonsense into its ring: nothing more is read of it.
    Nonsense { ring: u32 },
    /// It is over, perhaps within a record; so many were lost.
    Over { ring: u32, unfinished: bool, lost: u64 },
    /// More processes than can be tapped at a time.
    Crowd,
    /// Rings of the size that was asked for have no more room in memory: others are small.
    Small,
}

struct Tapped {
    number: u32,
    class: u8,
    reader: Reader,
    is_given: bool,
    is_over: bool,
    /// Nothing more is read of it.
    is_broken: bool,
    said: u32,
    /// All records with times up to this are known.
    clear: u64,
    /// When a record that is not finished was first met.
    waits_since: Option<u64>,
    /// Records, bytes lost so far; and of the records, those that were told of.
    lost: (u64, u64),
    told: u64,
}

/// How far a ring was read.
enum Progress {
    All,
    /// Up to a record that is not finished.
    Unfinished,
    /// Not at all: too much waits to be put in order.
    NoRoom,
}

/// All of them.
pub struct Rings {
    session: TapSession,
    pids: Pids,
    socket: PathBuf,
    class: u8,
    rings: Vec<Tapped>,
    made: u32,
    /// Whether it was said that there are as many as can be, and that rings are small.
    told: (bool, bool),
    waiting: Vec<Seen>,
    /// Records and bytes lost by rings that are over.
    past: (u64, u64),
}

impl Rings {
    /// Offers rings of this size class to the broker.
    pub fn new(session: TapSession, pids: Pids, socket: PathBuf, class: u8) -> Result<Self, Error> {
        let mut rings = Self {
            session,
            pids,
            socket,
            class,
            rings: Vec::new(),
            made: 0,
            told: (false, false),
            waiting: Vec::new(),
            past: (0, 0),
        };
        (0..SPARE).try_for_each(|_| rings.offer())?;
        Ok(rings)
    }

    fn offer(&mut self) -> Result<(), Error> {
        let large = self.rings.iter().filter(|known| known.class == self.class).count() + 1;
        let class = if large * len(self.class) <= LARGE { self.class } else { 0 };
        let (memory, reader) = Reader::create(class).map_err(Error::TapMemory)?;
        let number = self.made;
        self.made = self.made.wrapping_add(1);
        self.session.hand_over(number, class, memory.as_fd()).map_err(|error| self.gone(error.into()))?;
        self.rings.push(Tapped::new(number, class, reader));
        Ok(())
    }

    /// Offers rings for processes that are still to come, also in place of those that are over. Errors: the broker is gone, or no memory.
    pub fn offer_more(&mut self, mut tell: impl FnMut(News)) -> Result<(), Error> {
        let spare = |rings: &[Tapped]| rings.iter().filter(|known| !known.is_given).count();
        while self.rings.len() < MOST && spare(&self.rings) < SPARE {
            self.offer()?;
        }
        let is_crowded = spare(&self.rings) == 0;
        if is_crowded && !self.told.0 {
            tell(News::Crowd);
        }
        self.told.0 = is_crowded;
        let has_small = self.rings.iter().any(|known| known.is_given && known.class < self.class);
        if has_small && !self.told.1 {
            tell(News::Small);
        }
        self.told.1 |= has_small;
        Ok(())
    }

    fn gone(&self, error: io::Error) -> Error {
        Error::NoBroker { tried: vec![Tried::new(self.socket.clone(), error)] }
    }

    /// What the broker and the processes have said. Errors: the broker is gone.
    pub fn hear(&mut self, mut tell: impl FnMut(News)) -> Result<(), Error> {
        // Not without end: processes that come and go must not keep us from what is in the rings.
        for _ in 0..MOST {
            let Some(message) = self.session.hear().map_err(|error| self.gone(error.into()))? else { break };
            match message {
                FromBroker::Tapped { ring, pid, uid, comm } => {
                    let Some(known) = self.rings.iter_mut().find(|known| known.number == ring) else {
                        continue;
                    };
                    known.is_given = true;
                    // Its own choice, and on its way to somebody's terminal.
                    let comm = plain_name(&comm);
                    let pid = self.pids.own(pid);
                    tell(News::Began { ring, process: Process { pid, uid, comm } });
                }
                FromBroker::TapOver { ring } => {
                    let known = self.rings.iter_mut().find(|known| known.number == ring);
                    if let Some(known) = known {
                        known.is_over = true;
                    }
                }
                _ => {}
            }
        }
        for known in &mut self.rings {
            let says = known.reader.state();
            if std::mem::replace(&mut known.said, says) != says {
                match says {
                    state::GUARDED => tell(News::Guarded { ring: known.number }),
                    state::NO_MEMORY => tell(News::Failed { ring: known.number }),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Reads what is there. Returns, in order, what nothing earlier can come before any more, and what is to be told after it.
    pub fn read(&mut self) -> (Vec<Seen>, Vec<News>) {
        let (ready, mut news) = read(&mut self.rings, &mut self.waiting);
        self.let_go(&mut news);
        (ready, news)
    }

    /// At the end: what waits still, in order. Whether there is more, of processes of which the broker has not told yet.
    pub fn rest(&mut self) -> (Vec<Seen>, bool) {
        let mut rest = std::mem::take(&mut self.waiting);
        rest.sort_by_key(|seen| seen.segment.time);
        (rest, self.rings.iter().any(|known| !known.is_given && known.reader.head() != 0))
    }

    /// Rings of processes that have ended, and are read, or will never be.
    fn let_go(&mut self, news: &mut Vec<News>) {
        let (past, waiting) = (&mut self.past, &self.waiting);
        self.rings.retain(|known| {
            let is_read = known.is_broken || !known.reader.is_before(known.reader.head());
            let done = known.is_over && is_read && !waiting.iter().any(|seen| seen.ring == known.number);
            if done {
                *past = (past.0.saturating_add(known.lost.0), past.1.saturating_add(known.lost.1));
                news.push(News::Over { ring: known.number, unfinished: known.is_broken, lost: known.lost.0 });
            }
            !done
        });
    }

    /// Records and bytes for which there was no room, so far.
    pub fn lost(&self) -> (u64, u64) {
        self.rings.iter().fold(self.past, |(records, bytes), known| {
            (records.saturating_add(known.lost.0), bytes.saturating_add(known.lost.1))
        })
    }

    /// Of each process that is tapped: the records lost so far.
    pub fn losses(&self) -> impl Iterator<Item = (u32, u64)> {
        self.rings.iter().filter(|known| known.is_given).map(|known| (known.number, known.lost.0))
    }
}

/// Reads what is there into `waiting`, and takes out, in order, what nothing earlier can come before any more.
fn read(rings: &mut [Tapped], waiting: &mut Vec<Seen>) -> (Vec<Seen>, Vec<News>) {
    let mut news = Vec::new();
    let mut is_full = false;
    let moment = now();
    let heads: Vec<u64> = rings.iter().map(|known| known.reader.head()).collect();
    let mut held = waiting.iter().map(Seen::costs).sum::<usize>();
    for (known, head) in rings.iter_mut().zip(heads).filter(|(known, _)| !known.is_broken) {
        let before = waiting.len();
        let progress = known.read_to(head, waiting, held < WAITING);
        held += waiting[before..].iter().map(Seen::costs).sum::<usize>();
        match progress {
            Ok(Progress::All) => (known.clear, known.waits_since) = (moment, None),
            Ok(Progress::NoRoom) => is_full = true,
            Ok(Progress::Unfinished) if known.is_over => {
                known.is_broken = true;
                known.clear = u64::MAX;
            }
            Ok(Progress::Unfinished) => {
                let since = *known.waits_since.get_or_insert(moment);
                if moment - since > PATIENCE {
                    known.clear = moment;
                }
            }
            Err(Nonsense) => {
                known.is_broken = true;
                known.clear = u64::MAX;
                news.push(News::Nonsense { ring: known.number });
            }
        }
    }
    let known_to = match is_full {
        // A ring that is not read says nothing of what is still to come: all would wait for it, and it for them.
        true => u64::MAX,
        false => rings.iter().map(|known| known.clear).min().unwrap_or(u64::MAX),
    };
    let (mut ready, later): (Vec<Seen>, Vec<Seen>) =
        std::mem::take(waiting).into_iter().partition(|seen| seen.segment.time <= known_to);
    *waiting = later;
    // Stable: of equal times, those of one ring stay in order.
    ready.sort_by_key(|seen| seen.segment.time);
    (ready, news)
}

impl AsFd for Rings {
    /// Readable when the broker has said something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}

impl Tapped {
    fn new(number: u32, class: u8, reader: Reader) -> Self {
        Self {
            number,
            class,
            reader,
            is_given: false,
            is_over: false,
            is_broken: false,
            said: state::ASKED,
            clear: 0,
            waits_since: None,
            lost: (0, 0),
            told: 0,
        }
    }

    /// Reads up to `head`. Without `room`, nothing.
    fn read_to(&mut self, head: u64, to: &mut Vec<Seen>, room: bool) -> Result<Progress, Nonsense> {
        if !self.is_given {
            // Whose it is, is told by the broker; its process may be faster than that. Shown before, it would be nobody's.
            return Ok(if head == 0 { Progress::All } else { Progress::Unfinished });
        }
        if !room {
            return Ok(Progress::NoRoom);
        }
        if !self.reader.is_before(head) && !self.reader.is_at(head) {
            return Err(Nonsense);
        }
        let mut bytes = Vec::new();
        while self.reader.is_before(head) {
            match self.reader.next(&mut bytes)? {
                Next::Segment(mut segment) => {
                    // One that says to be of the future would wait for it.
                    segment.time = segment.time.min(now());
                    // Counted before it was reserved, or a moment after.
                    self.lost = self.reader.lost();
                    let dropped = self.lost.0.saturating_sub(self.told);
                    self.told = self.lost.0;
                    to.push(Seen { ring: self.number, segment, bytes: std::mem::take(&mut bytes), dropped });
                }
                Next::Void => {}
                Next::Empty => break,
                Next::Unfinished => return Ok(Progress::Unfinished),
            }
        }
        self.lost = self.reader.lost();
        Ok(Progress::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
    use rustix::net::{accept, bind, listen, socket_with};
    use shunpike_shm::region::Region;
    use shunpike_shm::tap::{HEADER, MAX_CLASS, MOST, RECORD, Ring};
    use shunpike_wire::session::{MAX, ToBroker};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A process's end of a ring, and the tap's.
    fn ring(number: u32, class: u8) -> (Ring, Tapped) {
        let (memory, reader) = Reader::create(class).expect("memfd");
        let region = Region::map(memory.as_fd(), len(class)).expect("mapped");
        // SAFETY: just mapped with this size, and never unmapped.
        let ring = unsafe { Ring::at(region.base() as usize, class) };
        (ring, Tapped { is_given: true, ..Tapped::new(number, class, reader) })
    }

    /// Fills the ring with segments of this size, of now.
    fn fill(ring: &Ring, payload: usize) -> usize {
        let segment = Segment {
            time: now(),
            seq: 0,
            ack: 0,
            len: payload as u32,
            flags: 0,
            local: "127.0.0.1:1".parse().expect("address"),
            remote: "127.0.0.1:2".parse().expect("address"),
        };
        let header = segment.encode();
        let mut count = 0;
        while let Some(place) = ring.reserve(payload) {
            let mut from = &header[8..];
            for (to, n) in ring.stretches(place, 8, RECORD - 8) {
                let (now, rest) = from.split_at(n);
                // SAFETY: reserved for us.
                unsafe { to.copy_from_nonoverlapping(now.as_ptr(), n) };
                from = rest;
            }
            ring.seal(place, true);
            count += 1;
        }
        count
    }

    #[test]
    fn what_waits_for_a_hostile_process_has_a_bound_and_is_shown() {
        // Large segments, and segments without a byte.
        for payload in [MOST, 0] {
            let (busy, known) = ring(0, MAX_CLASS);
            let (hostile, other) = ring(1, 0);
            let mut rings = [known, other];
            let _never_sealed = hostile.reserve(16);
            let (mut sent, mut seen, mut waiting) = (0, 0, Vec::new());
            // As fast as they are read.
            for _ in 0..4 {
                sent += fill(&busy, payload);
                seen += read(&mut rings, &mut waiting).0.len();
                let held: usize = waiting.iter().map(Seen::costs).sum();
                assert!(held <= 4 * WAITING, "{held} bytes are held back");
            }
            std::thread::sleep(std::time::Duration::from_nanos(PATIENCE));
            for _ in 0..4 {
                seen += read(&mut rings, &mut waiting).0.len();
            }
            assert_eq!((seen, waiting.len()), (sent, 0), "of segments of {payload} bytes");
        }
    }

    #[test]
    fn a_head_beyond_the_ring_is_told() {
        let (ring, known) = ring(0, 0);
        let place = ring.reserve(0).expect("room");
        let mut rings = [known];
        // SAFETY: the first record stands at the ring's beginning; the head is the first word before that.
        let head = unsafe { &*ring.stretches(place, 0, 1)[0].0.sub(HEADER).cast::<AtomicU64>() };
        head.store(1 << 40, Ordering::Relaxed);
        let (_, news) = read(&mut rings, &mut Vec::new());
        assert!(matches!(news[..], [News::Nonsense { ring: 0 }]) && rings[0].is_broken);
    }

    #[test]
    fn what_is_nobodys_yet_waits_until_it_is_told_whose_it_is() {
        let (early, known) = ring(0, 0);
        let (other, other_known) = ring(1, 0);
        let mut rings = [Tapped { is_given: false, ..known }, other_known];
        let mut waiting = Vec::new();
        let sent = fill(&early, 16);
        fill(&other, 16);
        // What the other has sent later waits with it, for a time.
        assert_eq!(read(&mut rings, &mut waiting).0.len(), 0);
        rings[0].is_given = true;
        let (seen, _) = read(&mut rings, &mut waiting);
        assert_eq!(seen.iter().filter(|seen| seen.ring == 0).count(), sent);
        assert!(seen.is_sorted_by_key(|seen| seen.segment.time) && waiting.is_empty());
    }

    /// A broker that gives each ring to a process as soon as it has it, as long as `gives` says so.
    struct Broker {
        tap: OwnedFd,
        /// The rings that it has, and their size classes.
        rings: Vec<(u32, u8)>,
        _directory: tempfile::TempDir,
    }

    impl Broker {
        /// One, and a tap with rings of this class.
        fn with(class: u8) -> (Self, Rings) {
            let directory = tempfile::tempdir().expect("temporary directory");
            let path = directory.path().join("socket");
            let kind = SocketFlags::CLOEXEC;
            let listener =
                socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, kind, None).expect("socket");
            bind(&listener, &SocketAddrUnix::new(&path).expect("address")).expect("bound");
            listen(&listener, 1).expect("listens");
            let answer = std::thread::spawn(move || {
                let tap = accept(&listener).expect("a tap");
                rustix::net::recv(&tap, &mut [0; 64], RecvFlags::empty()).expect("its question");
                for text in [&b"{}"[..], b""] {
                    rustix::net::send(&tap, text, SendFlags::NOSIGNAL).expect("sent");
                }
                tap
            });
            let session = TapSession::begin(&path).expect("a session");
            let tap = answer.join().expect("no panic");
            let rings = Rings::new(session, Pids::of(&path), path, class).expect("rings");
            (Self { tap, rings: Vec::new(), _directory: directory }, rings)
        }

        fn says(&self, message: &FromBroker) {
            let mut bytes = [0; MAX];
            let n = message.encode(&mut bytes).expect("fits");
            rustix::net::send(&self.tap, &bytes[..n], SendFlags::NOSIGNAL).expect("sent");
        }

        /// Gives all rings that it has to processes. How many.
        fn gives(&mut self) -> usize {
            let mut bytes = [0; MAX];
            let before = self.rings.len();
            // The descriptors are let go.
            while let Ok((n, _)) = rustix::net::recv(&self.tap, &mut bytes[..], RecvFlags::DONTWAIT) {
                let Ok(ToBroker::Ring { ring, class }) = ToBroker::decode(&bytes[..n]) else {
                    panic!("a ring")
                };
                self.rings.push((ring, class));
                self.says(&FromBroker::Tapped { ring, pid: 1, uid: 1, comm: [0; 16] });
            }
            self.rings.len() - before
        }
    }

    #[test]
    fn who_has_had_all_rings_for_a_moment_does_not_blind_the_tap() {
        let (mut broker, mut rings) = Broker::with(0);
        let mut crowded = 0;
        let mut tell = |news| crowded += usize::from(matches!(news, News::Crowd));
        let mut turn = |rings: &mut Rings| {
            rings.hear(&mut tell).expect("a broker");
            rings.read();
            rings.offer_more(&mut tell).expect("a broker");
        };
        while broker.gives() > 0 {
            turn(&mut rings);
        }
        turn(&mut rings);
        assert_eq!(broker.rings.len(), super::MOST);
        for (ring, _) in std::mem::take(&mut broker.rings) {
            broker.says(&FromBroker::TapOver { ring });
            turn(&mut rings);
        }
        turn(&mut rings);
        assert_eq!(broker.gives(), SPARE, "for processes to come");
        assert_eq!(crowded, 1, "told once");
    }

    #[test]
    fn rings_have_a_bound_together_and_more_processes_have_small_ones() {
        let (mut broker, mut rings) = Broker::with(MAX_CLASS);
        let mut small = 0;
        let mut tell = |news| small += usize::from(matches!(news, News::Small));
        while broker.gives() > 0 && broker.rings.len() < 40 {
            rings.hear(&mut tell).expect("a broker");
            rings.offer_more(&mut tell).expect("a broker");
        }
        let large = broker.rings.iter().filter(|(_, class)| *class == MAX_CLASS).count();
        assert!((LARGE - len(MAX_CLASS)..=LARGE).contains(&(large * len(MAX_CLASS))), "{large} large ones");
        assert!(broker.rings.iter().all(|(_, class)| [0, MAX_CLASS].contains(class)));
        assert_eq!((broker.rings.len(), small), (40, 1));
    }
}
