//! Measures: what an engine can do by itself, and how much of that a link group gives.
//!
//! Two threads are the two hosts, each with an engine of its own. The engine's limit is a loop of RMA writes with immediates: bulk writes go
//! round a ring, as many under way as a link group allows itself; a message of 8 bytes goes back and forth. The link group does the same by
//! its connection 1, one link up. Neither end makes or looks at the bytes: an agent does not, either.

use crate::carrier::{Carrier, Pace, Rings};
use crate::engine::{
    Completion, Endpoint, Engine, EngineError, Event, Queue, RToken, Registered, Source, Target,
};
use crate::group::{Group, Role, Settings};
use crate::libfabric::{Libfabric, Provider};
use crate::memory::Memory;
use crate::words::{Llc, Slot};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the ring that bulk goes round: the largest of a lane.
const RING: usize = 8 << 20;
/// Bytes of a message.
const MESSAGE: usize = 8;
/// Told with the last write.
const LAST: u32 = u32::MAX;
/// Until both ends are connected, at the most.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is measured, and where.
#[derive(Copy, Clone, Debug)]
pub struct Plan {
    /// libfabric's.
    pub provider: Provider,
    /// An address of this host's, on the device.
    pub address: IpAddr,
    /// Of one measurement.
    pub length: Duration,
    /// Measurements of each kind, in turn.
    pub rounds: u32,
}

/// What came of it: one value for each round, in the order in which they were measured.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Measured {
    /// Bytes a second that landed, of the engine.
    pub engine_bulk: Vec<f64>,
    /// Of the link group.
    pub group_bulk: Vec<f64>,
    /// Seconds of one way of a message: half of the mean round trip, of the engine.
    pub engine_latency: Vec<f64>,
    /// Of the link group.
    pub group_latency: Vec<f64>,
}

/// Measures all. Errors: those of the engine.
pub fn measure(plan: &Plan) -> Result<Measured, EngineError> {
    let mut measured = Measured::default();
    for _ in 0..plan.rounds {
        measured.engine_bulk.push(engines(plan, bulk_out, bulk_in)?);
        measured.group_bulk.push(groups(plan, group_bulk_out, group_bulk_in)?);
        measured.engine_latency.push(engines(plan, ping, pong)?);
        measured.group_latency.push(groups(plan, group_ping, group_pong)?);
    }
    Ok(measured)
}

/// One end of the engine's own loops.
struct Bare {
    engine: Libfabric,
    queue: Queue,
    endpoint: Endpoint,
    memory: Registered,
    peer: RToken,
    length: Duration,
    news: Vec<Completion>,
}

/// What one end tells the other before they are connected.
type Hello = (RToken, Option<SocketAddr>);

/// Runs both ends; what the receiver, or who sent first, has measured.
fn engines(
    plan: &Plan,
    first: fn(Bare) -> Result<Option<f64>, EngineError>,
    second: fn(Bare) -> Result<Option<f64>, EngineError>,
) -> Result<f64, EngineError> {
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    both(
        move |plan| first(Bare::connect(plan, &to_second, &from_second, false)?),
        move |plan| second(Bare::connect(plan, &to_first, &from_first, true)?),
        plan,
    )
}

fn both(
    first: impl FnOnce(&Plan) -> Result<Option<f64>, EngineError> + Send,
    second: impl FnOnce(&Plan) -> Result<Option<f64>, EngineError> + Send,
    plan: &Plan,
) -> Result<f64, EngineError> {
    thread::scope(|scope| {
        let second = scope.spawn(|| second(plan));
        let first = first(plan);
        let second = second.join().expect("it does not panic");
        // Who has failed first tells more than who then waited in vain.
        match (first, second) {
            (Ok(first), Ok(second)) => Ok(first.or(second).expect("one of them measures")),
            (Err(EngineError::Unknown), Err(error)) | (Err(error), _) | (_, Err(error)) => Err(error),
        }
    })
}

/// What an end has to say of a peer's that is gone.
fn gone<T>(_: T) -> EngineError {
    EngineError::Unknown
}

impl Bare {
    fn connect(
        plan: &Plan,
        tell: &Sender<Hello>,
        hear: &Receiver<Hello>,
        listens: bool,
    ) -> Result<Self, EngineError> {
        let mut engine = Libfabric::open(plan.provider, SocketAddr::new(plan.address, 0))?;
        let queue = engine.open_queue(0)?;
        let memory = Memory::new(RING).map_err(|_| EngineError::Failed("memory", libc::ENOMEM))?;
        let (memory, token) = engine.register(&memory)?;
        let at = if listens { Some(engine.listen(SocketAddr::new(plan.address, 0))?) } else { None };
        tell.send((token, at)).map_err(gone)?;
        let (peer, at) = hear.recv().map_err(gone)?;
        if let Some(at) = at {
            engine.connect(at, queue, b"")?;
        }
        let (end, mut news) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            engine.poll(queue, &mut news)?;
            match engine.event() {
                Some(Event::Requested { request, .. }) => {
                    engine.accept(request, queue, b"")?;
                }
                Some(Event::Connected { endpoint, .. }) => {
                    let length = plan.length;
                    return Ok(Self { engine, queue, endpoint, memory, peer, length, news });
                }
                Some(Event::Lost { .. }) => return Err(EngineError::Failed("connecting", libc::ECONNRESET)),
                None if Instant::now() > end => {
                    return Err(EngineError::Failed("connecting", libc::ETIMEDOUT));
                }
                None => {}
            }
        }
    }

    fn write(&mut self, offset: usize, len: usize, data: u32) -> Result<bool, EngineError> {
        let source = Source { memory: self.memory, offset, len };
        let target = Target { token: self.peer, offset: offset as u64 };
        match self.engine.write(self.endpoint, source, target, data, len as u32) {
            Ok(()) => Ok(true),
            Err(EngineError::Full) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn poll(&mut self) -> Result<(), EngineError> {
        self.news.clear();
        self.engine.poll(self.queue, &mut self.news)?;
        let failed = self.news.iter().any(|news| matches!(news, Completion::Written { done: false, .. }));
        if failed { Err(EngineError::Failed("a write", libc::ECONNRESET)) } else { Ok(()) }
    }

    /// Waits for the peer's next immediate.
    fn told(&mut self) -> Result<u32, EngineError> {
        let end = Instant::now() + PATIENCE + self.length;
        loop {
            for _ in 0..1024 {
                self.poll()?;
                let told = self.news.iter().find_map(|news| match news {
                    Completion::Immediate { data, .. } => Some(*data),
                    Completion::Written { .. } => None,
                });
                if let Some(data) = told {
                    return Ok(data);
                }
            }
            if Instant::now() > end {
                return Err(EngineError::Failed("waiting for the peer", libc::ETIMEDOUT));
            }
        }
    }
}

fn bulk_out(mut end: Bare) -> Result<Option<f64>, EngineError> {
    let pace = Pace::default();
    let (began, mut at, mut under_way, mut over) = (Instant::now(), 0, 0, false);
    loop {
        let room = under_way == 0 || under_way + pace.chunk <= pace.under_way;
        if !over && room {
            over = began.elapsed() > end.length;
            let data = if over { LAST } else { 0 };
            if end.write(at, pace.chunk, data)? {
                under_way += pace.chunk;
                at = (at + pace.chunk) % RING;
                continue;
            }
            over = false;
        }
        end.poll()?;
        for news in &end.news {
            match news {
                Completion::Written { context, .. } => under_way -= *context as usize,
                // The receiver has all.
                Completion::Immediate { .. } => return Ok(None),
            }
        }
    }
}

fn bulk_in(mut end: Bare) -> Result<Option<f64>, EngineError> {
    let chunk = Pace::default().chunk;
    let (mut bytes, mut began) = (0, None);
    loop {
        end.poll()?;
        for at in 0..end.news.len() {
            let Completion::Immediate { data, .. } = end.news[at] else { continue };
            // The first one is the clock's beginning.
            let Some(began) = began else {
                began = Some(Instant::now());
                continue;
            };
            bytes += chunk;
            if data == LAST {
                let seconds = Instant::elapsed(&began).as_secs_f64();
                goodbye(&mut end)?;
                return Ok(Some(bytes as f64 / seconds));
            }
        }
    }
}

/// The last word, and time for it to go out: the endpoint is closed behind it.
fn goodbye(end: &mut Bare) -> Result<(), EngineError> {
    end.write(0, MESSAGE, LAST)?;
    let patience = Instant::now() + PATIENCE;
    while Instant::now() < patience {
        // The peer closes when it has come.
        if end.poll().is_err() || matches!(end.engine.event(), Some(Event::Lost { .. })) {
            return Ok(());
        }
    }
    Err(EngineError::Failed("waiting for the peer", libc::ETIMEDOUT))
}

fn ping(mut end: Bare) -> Result<Option<f64>, EngineError> {
    let (began, mut trips) = (Instant::now(), 0_u32);
    while began.elapsed() < end.length {
        for _ in 0..64 {
            end.write(0, MESSAGE, 0)?;
            end.told()?;
            trips += 1;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    goodbye(&mut end)?;
    Ok(Some(seconds / f64::from(trips) / 2.0))
}

fn pong(mut end: Bare) -> Result<Option<f64>, EngineError> {
    while end.told()? != LAST {
        end.write(0, MESSAGE, 0)?;
    }
    Ok(None)
}

/// One end of a link group.
struct End {
    engine: Libfabric,
    carrier: Carrier,
    slot: Slot,
    say: Sender<Llc>,
    hear: Receiver<Llc>,
    began: Instant,
    turns: u32,
    length: Duration,
}

fn groups(
    plan: &Plan,
    first: fn(&mut End) -> Result<Option<f64>, EngineError>,
    second: fn(&mut End) -> Result<Option<f64>, EngineError>,
) -> Result<f64, EngineError> {
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    both(
        move |plan| first(&mut End::connect(plan, to_second, from_second, false)?),
        move |plan| second(&mut End::connect(plan, to_first, from_first, true)?),
        plan,
    )
}

impl End {
    fn connect(
        plan: &Plan,
        say: Sender<Llc>,
        hear: Receiver<Llc>,
        listens: bool,
    ) -> Result<Self, EngineError> {
        let mut engine = Libfabric::open(plan.provider, SocketAddr::new(plan.address, 0))?;
        let queue = engine.open_queue(0)?;
        let role = if listens {
            Role::Server(engine.listen(SocketAddr::new(plan.address, 0))?)
        } else {
            Role::Client
        };
        let settings = Settings { links: 1, answer_within: 10_000, patience: 10_000, ..Settings::default() };
        let group = Group::new(role, settings, 0);
        let mut carrier = Carrier::new(&mut engine, queue, group, Pace::default())?;
        let slot = carrier.free_slot().expect("the first one");
        let memory = || Memory::new(RING).map_err(|_| EngineError::Failed("memory", libc::ENOMEM));
        let rings = Rings { sends: memory()?, receives: memory()?, offset: 0, size: RING as u32 };
        carrier.open(&mut engine, slot, rings)?;
        let mut end =
            Self { engine, carrier, slot, say, hear, began: Instant::now(), turns: 0, length: plan.length };
        while !end.carrier.group().link(0).is_usable() {
            end.turn()?;
        }
        end.began = Instant::now();
        Ok(end)
    }

    fn turn(&mut self) -> Result<(), EngineError> {
        self.carrier.turn(&mut self.engine)?;
        self.turns = self.turns.wrapping_add(1);
        if self.turns % 256 == 1 {
            let now = self.began.elapsed().as_millis() as u64;
            self.carrier.tick(&mut self.engine, now);
            while let Ok(llc) = self.hear.try_recv() {
                self.carrier.said(&mut self.engine, llc);
            }
            if self.carrier.group().has_ended() {
                return Err(EngineError::Failed("the link group", libc::ECONNRESET));
            }
        }
        while let Some(llc) = self.carrier.says() {
            self.say.send(llc).map_err(gone)?;
        }
        Ok(())
    }

    /// Bytes that have come, taken as read.
    fn take(&mut self) -> u64 {
        let (unread, _) = self.carrier.unread(self.slot).expect("it is open");
        self.carrier.consume(self.slot, unread);
        unread
    }

    fn put(&mut self, most: u64) -> u64 {
        let (room, _) = self.carrier.room(self.slot).expect("it is open");
        let n = room.min(most);
        self.carrier.produce(self.slot, n);
        n
    }
}

fn group_bulk_out(end: &mut End) -> Result<Option<f64>, EngineError> {
    let began = Instant::now();
    while began.elapsed() < end.length {
        end.put(u64::MAX);
        end.turn()?;
    }
    // The receiver says a byte when it has measured.
    while end.take() == 0 {
        end.turn()?;
    }
    Ok(None)
}

fn group_bulk_in(end: &mut End) -> Result<Option<f64>, EngineError> {
    while end.take() == 0 {
        end.turn()?;
    }
    let (began, mut bytes) = (Instant::now(), 0);
    // A little less than the sender sends, which began before.
    while began.elapsed() < end.length.mul_f64(0.9) {
        end.turn()?;
        bytes += end.take();
    }
    let seconds = began.elapsed().as_secs_f64();
    end.put(1);
    let until = Instant::now() + end.length;
    while Instant::now() < until {
        end.take();
        if end.turn().is_err() {
            break;
        }
    }
    Ok(Some(bytes as f64 / seconds))
}

fn group_ping(end: &mut End) -> Result<Option<f64>, EngineError> {
    let (began, mut trips) = (Instant::now(), 0_u32);
    while began.elapsed() < end.length {
        for _ in 0..64 {
            exchange(end)?;
            trips += 1;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Some(seconds / f64::from(trips) / 2.0))
}

/// Sends a message and waits for the answer.
fn exchange(end: &mut End) -> Result<(), EngineError> {
    let (mut owed, mut come) = (MESSAGE as u64, 0);
    while come < MESSAGE as u64 {
        // What was read is said now and then: there may be room for a part.
        owed -= end.put(owed);
        end.turn()?;
        come += end.take();
    }
    Ok(())
}

fn group_pong(end: &mut End) -> Result<Option<f64>, EngineError> {
    let mut owed = 0;
    loop {
        owed += end.take();
        owed -= end.put(owed);
        // The other end is gone when it has measured.
        if end.turn().is_err() {
            return Ok(None);
        }
    }
}
