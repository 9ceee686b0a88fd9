//! The engine `fake`: a network in this process, for tests. It keeps the rules of [`engine`](crate::engine) and nothing beyond them.
//!
//! Time goes on by a step with each call that polls. What is under way moves by chance, seeded: bytes are read from their source some time
//! after they are posted, land some time later, are told of later still, and the completion comes before that or after. A link that is cut is
//! told to both ends, each in its own time; until an end closes it, what was on its way may still land there. Completions may be lost with it.

use crate::engine::{
    Completion, Endpoint, Engine, EngineError, Event, Limits, MAX_HELLO, Queue, RToken, Registered, Request,
    Source, Target,
};
use crate::memory::Memory;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// What goes wrong, and how often.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Faults {
    /// Most steps from one event of a write or a connection to the next; at least 1.
    pub delay: u64,
    /// A link is cut once in so many steps, on average. 0: never.
    pub cut: u64,
    /// Of a link that was cut: completions that were still to come may never come.
    pub lose_completions: bool,
    /// A completion may come before the bytes have landed, as with TCP sockets.
    pub early: bool,
}

impl Faults {
    /// Nothing goes wrong, and all comes soon.
    pub const NONE: Self = Self { delay: 1, cut: 0, lose_completions: false, early: false };
}

/// A network between fake engines.
#[derive(Clone)]
pub struct Net(Rc<RefCell<State>>);

/// A host's engine on a [`Net`].
pub struct Fake {
    net: Net,
    host: usize,
}

/// Small, so that tests meet it.
const LIMITS: Limits = Limits { write: 1 << 20, writes: 8, vectors: 2 };

struct State {
    random: Random,
    faults: Faults,
    step: u64,
    next: u32,
    hosts: Vec<Host>,
    ends: BTreeMap<Endpoint, End>,
    requests: BTreeMap<Request, Endpoint>,
    keys: BTreeMap<u64, (usize, Registered)>,
    /// Writes that came where nothing is registered any more.
    strays: u32,
}

#[derive(Default)]
struct Host {
    listens: Option<SocketAddr>,
    queues: Vec<VecDeque<Completion>>,
    memories: BTreeMap<Registered, (Memory, u64)>,
    /// Each with the step before which it is not told, nor those behind it.
    events: VecDeque<(u64, Event)>,
}

/// One end of a link.
struct End {
    host: usize,
    queue: Queue,
    peer: Option<Endpoint>,
    state: Standing,
    /// What this end sends, the oldest first.
    flights: VecDeque<Flight>,
    /// What has landed at this end and is still to be told, with the step.
    news: VecDeque<(u64, u32)>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Standing {
    Connecting,
    Connected,
    /// Cut; this end has yet to be told.
    Cut,
    /// Cut, and told.
    Lost,
    /// Closed by its owner: what it had sent may be on its way yet, and nothing lands here.
    Closed,
}

struct Flight {
    source: (Memory, usize, usize),
    target: Target,
    immediate: u32,
    context: u32,
    /// The step at which something may happen to it next.
    due: u64,
    /// The bytes on their way.
    departed: Option<Vec<u8>>,
    landed: bool,
    completed: bool,
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

impl Net {
    /// A network whose chances follow from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self(Rc::new(RefCell::new(State {
            random: Random(seed),
            faults,
            step: 0,
            next: 1,
            hosts: Vec::new(),
            ends: BTreeMap::new(),
            requests: BTreeMap::new(),
            keys: BTreeMap::new(),
            strays: 0,
        })))
    }

    /// One more host's engine.
    pub fn engine(&self) -> Fake {
        let mut state = self.0.borrow_mut();
        state.hosts.push(Host::default());
        Fake { net: self.clone(), host: state.hosts.len() - 1 }
    }

    /// Cuts the link of an endpoint.
    pub fn cut(&self, endpoint: Endpoint) {
        self.0.borrow_mut().cut(endpoint);
    }

    /// Writes that came where nothing is registered any more.
    pub fn strays(&self) -> u32 {
        self.0.borrow().strays
    }

    /// From now on no link is cut by chance.
    pub fn calm(&self) {
        self.0.borrow_mut().faults.cut = 0;
    }
}

impl State {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn soon(&mut self) -> u64 {
        self.step + 1 + self.random.below(self.faults.delay)
    }

    fn tell(&mut self, host: usize, event: Event) {
        let due = self.soon();
        self.hosts[host].events.push_back((due, event));
    }

    fn end(&mut self, host: usize, queue: Queue) -> Result<Endpoint, EngineError> {
        if queue.0 as usize >= self.hosts[host].queues.len() {
            return Err(EngineError::Unknown);
        }
        let endpoint = Endpoint(self.number());
        let end = End {
            host,
            queue,
            peer: None,
            state: Standing::Connecting,
            flights: VecDeque::new(),
            news: VecDeque::new(),
        };
        self.ends.insert(endpoint, end);
        Ok(endpoint)
    }

    /// Both ends are going to be told.
    fn cut(&mut self, endpoint: Endpoint) {
        let peer = self.ends.get(&endpoint).and_then(|end| end.peer);
        for endpoint in [Some(endpoint), peer].into_iter().flatten() {
            let Some(end) = self.ends.get_mut(&endpoint) else { continue };
            if !matches!(end.state, Standing::Connecting | Standing::Connected) {
                continue;
            }
            end.state = Standing::Cut;
            // What is on its way may land long after: when the ring has come round.
            let late = self.step + self.random.below(200 * self.faults.delay);
            end.flights.iter_mut().for_each(|flight| flight.due = flight.due.max(late));
            let host = end.host;
            self.tell(host, Event::Lost { endpoint });
        }
    }

    /// One step of time: each link moves a little.
    fn go_on(&mut self) {
        self.step += 1;
        let endpoints: Vec<_> = self.ends.keys().copied().collect();
        for endpoint in endpoints {
            let may_be_cut = self.faults.cut > 0 && self.random.below(self.faults.cut) == 0;
            if may_be_cut && self.ends.get(&endpoint).is_some_and(|end| end.state == Standing::Connected) {
                self.cut(endpoint);
            }
            self.depart(endpoint);
            self.land(endpoint);
            self.complete(endpoint);
            self.tell_landed(endpoint);
        }
        self.ends.retain(|_, end| end.state != Standing::Closed || !end.flights.is_empty());
    }

    /// The next write's bytes leave.
    fn depart(&mut self, endpoint: Endpoint) {
        let (step, due) = (self.step, self.soon());
        let end = self.ends.get_mut(&endpoint).expect("it is there");
        if end.state != Standing::Connected {
            return;
        }
        let flight = end.flights.iter_mut().find(|flight| flight.departed.is_none());
        if let Some(flight) = flight.filter(|flight| flight.due <= step) {
            let (memory, offset, len) = &flight.source;
            let mut bytes = vec![0; *len];
            memory.read(*offset, &mut bytes);
            flight.departed = Some(bytes);
            flight.due = due;
        }
    }

    /// The oldest write that is on its way lands, or, of a link that was cut, is lost with all behind it.
    fn land(&mut self, endpoint: Endpoint) {
        let (step, due) = (self.step, self.soon());
        let is_lost = self.random.coin();
        let end = self.ends.get_mut(&endpoint).expect("it is there");
        let (was_cut, peer) = (end.state != Standing::Connected, end.peer);
        let Some(flight) = end.flights.iter_mut().find(|flight| !flight.landed) else { return };
        let Some(bytes) = flight.departed.clone().filter(|_| flight.due <= step) else { return };
        let (target, immediate) = (flight.target, flight.immediate);
        let is_open = |peer: &Endpoint| self.ends.get(peer).is_some_and(|end| end.state != Standing::Closed);
        let there = peer.filter(is_open);
        let Some(peer) = there.filter(|_| !(was_cut && is_lost)) else {
            let end = self.ends.get_mut(&endpoint).expect("it is there");
            end.flights.retain(|flight| flight.landed);
            return;
        };
        let host = self.ends[&peer].host;
        let memory = self.keys.get(&target.token.key).filter(|(owner, _)| *owner == host);
        let memory = memory.map(|(_, registered)| self.hosts[host].memories[registered].0.clone());
        let inside = memory.filter(|memory| memory.contains(target.offset as usize, bytes.len()));
        let Some(memory) = inside else {
            // Remote access error: the adapter ends the link.
            self.strays += 1;
            self.cut(endpoint);
            let end = self.ends.get_mut(&endpoint).expect("it is there");
            end.flights.retain(|flight| flight.landed);
            return;
        };
        memory.write(target.offset as usize, &bytes);
        self.ends.get_mut(&peer).expect("it is there").news.push_back((due, immediate));
        let end = self.ends.get_mut(&endpoint).expect("it is there");
        let flight = end.flights.iter_mut().find(|flight| !flight.landed).expect("it has just landed");
        flight.landed = true;
    }

    /// The oldest write whose completion has not come is completed.
    fn complete(&mut self, endpoint: Endpoint) {
        let (early, lose) = (self.faults.early, self.faults.lose_completions);
        let (late, lost) = (self.random.coin(), self.random.coin());
        let end = self.ends.get_mut(&endpoint).expect("it is there");
        let was_cut = end.state != Standing::Connected;
        if end.state == Standing::Closed {
            return end.flights.retain(|flight| !flight.landed);
        }
        let Some(flight) = end.flights.iter_mut().find(|flight| !flight.completed) else { return };
        if late || !(flight.landed || early && flight.departed.is_some()) {
            return;
        }
        flight.completed = true;
        let (host, queue, context) = (end.host, end.queue, flight.context);
        end.flights.retain(|flight| !(flight.landed && flight.completed));
        if !(was_cut && lose && lost) {
            let told = Completion::Written { endpoint, context, done: true };
            self.hosts[host].queues[queue.0 as usize].push_back(told);
        }
    }

    /// The immediates that are due.
    fn tell_landed(&mut self, endpoint: Endpoint) {
        let step = self.step;
        let end = self.ends.get_mut(&endpoint).expect("it is there");
        while end.news.front().is_some_and(|(due, _)| *due <= step) {
            let (_, data) = end.news.pop_front().expect("it is there");
            let told = Completion::Immediate { endpoint, data };
            self.hosts[end.host].queues[end.queue.0 as usize].push_back(told);
        }
    }
}

impl Engine for Fake {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn open_queue(&mut self, _vector: u32) -> Result<Queue, EngineError> {
        let mut state = self.net.0.borrow_mut();
        let queues = &mut state.hosts[self.host].queues;
        queues.push(VecDeque::new());
        Ok(Queue(queues.len() as u32 - 1))
    }

    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr, EngineError> {
        let mut state = self.net.0.borrow_mut();
        let port = if at.port() == 0 { 1000 + state.number() as u16 } else { at.port() };
        let at = SocketAddr::new(at.ip(), port);
        state.hosts[self.host].listens = Some(at);
        Ok(at)
    }

    fn connect(&mut self, to: SocketAddr, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError> {
        if hello.len() > MAX_HELLO {
            return Err(EngineError::Hello);
        }
        let mut state = self.net.0.borrow_mut();
        let endpoint = state.end(self.host, queue)?;
        match state.hosts.iter().position(|host| host.listens == Some(to)) {
            Some(host) => {
                let request = Request(state.number());
                state.requests.insert(request, endpoint);
                state.tell(host, Event::Requested { request, hello: hello.to_vec() });
            }
            None => state.cut(endpoint),
        }
        Ok(endpoint)
    }

    fn accept(&mut self, request: Request, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError> {
        if hello.len() > MAX_HELLO {
            return Err(EngineError::Hello);
        }
        let mut state = self.net.0.borrow_mut();
        let theirs = state.requests.remove(&request).ok_or(EngineError::Unknown)?;
        let ours = state.end(self.host, queue)?;
        if !state.ends.get(&theirs).is_some_and(|end| end.state == Standing::Connecting) {
            // It has closed meanwhile.
            state.cut(ours);
            return Ok(ours);
        }
        for (endpoint, peer, hello) in [(ours, theirs, Vec::new()), (theirs, ours, hello.to_vec())] {
            let end = state.ends.get_mut(&endpoint).expect("it is there");
            (end.peer, end.state) = (Some(peer), Standing::Connected);
            let host = end.host;
            state.tell(host, Event::Connected { endpoint, hello });
        }
        Ok(ours)
    }

    fn refuse(&mut self, request: Request) -> Result<(), EngineError> {
        let mut state = self.net.0.borrow_mut();
        let theirs = state.requests.remove(&request).ok_or(EngineError::Unknown)?;
        state.cut(theirs);
        Ok(())
    }

    fn close(&mut self, endpoint: Endpoint) {
        let mut state = self.net.0.borrow_mut();
        if state.ends.get(&endpoint).is_none_or(|end| end.host != self.host) {
            return;
        }
        state.cut(endpoint);
        let end = state.ends.get_mut(&endpoint).expect("it is there");
        end.state = Standing::Closed;
        end.news.clear();
        end.flights.retain(|flight| flight.departed.is_some() && !flight.landed);
        let host = &mut state.hosts[self.host];
        host.events.retain(|(_, event)| match event {
            Event::Connected { endpoint: of, .. } | Event::Lost { endpoint: of } => *of != endpoint,
            Event::Requested { .. } => true,
        });
        for queue in &mut host.queues {
            queue.retain(|news| match news {
                Completion::Written { endpoint: of, .. } | Completion::Immediate { endpoint: of, .. } => {
                    *of != endpoint
                }
            });
        }
    }

    fn register(&mut self, memory: &Memory) -> Result<(Registered, RToken), EngineError> {
        let mut state = self.net.0.borrow_mut();
        let (registered, key) = (Registered(state.number()), state.random.next());
        state.keys.insert(key, (self.host, registered));
        state.hosts[self.host].memories.insert(registered, (memory.clone(), key));
        Ok((registered, RToken { key, address: 0 }))
    }

    fn deregister(&mut self, memory: Registered) -> Result<(), EngineError> {
        let mut state = self.net.0.borrow_mut();
        let (_, key) = state.hosts[self.host].memories.remove(&memory).ok_or(EngineError::Unknown)?;
        state.keys.remove(&key);
        Ok(())
    }

    fn write(
        &mut self,
        endpoint: Endpoint,
        source: Source,
        target: Target,
        immediate: u32,
        context: u32,
    ) -> Result<(), EngineError> {
        let mut state = self.net.0.borrow_mut();
        let memory = state.hosts[self.host].memories.get(&source.memory).ok_or(EngineError::Unknown)?;
        let memory = memory.0.clone();
        if source.len == 0 || source.len > LIMITS.write || !memory.contains(source.offset, source.len) {
            return Err(EngineError::Range);
        }
        let due = state.soon();
        let end = state.ends.get_mut(&endpoint).ok_or(EngineError::Unknown)?;
        match end.state {
            Standing::Closed => return Err(EngineError::Unknown),
            Standing::Connecting | Standing::Lost => {
                return Err(EngineError::Failed("a write", libc::ENOTCONN));
            }
            // It does not know yet: the write goes nowhere.
            Standing::Cut => return Ok(()),
            Standing::Connected => {}
        }
        if end.flights.len() >= LIMITS.writes {
            return Err(EngineError::Full);
        }
        end.flights.push_back(Flight {
            source: (memory, source.offset, source.len),
            target,
            immediate,
            context,
            due,
            departed: None,
            landed: false,
            completed: false,
        });
        Ok(())
    }

    fn poll(&mut self, queue: Queue, news: &mut Vec<Completion>) -> Result<(), EngineError> {
        let mut state = self.net.0.borrow_mut();
        state.go_on();
        let queues = &mut state.hosts[self.host].queues;
        news.extend(queues.get_mut(queue.0 as usize).ok_or(EngineError::Unknown)?.drain(..));
        Ok(())
    }

    fn event(&mut self) -> Option<Event> {
        let mut state = self.net.0.borrow_mut();
        let step = state.step;
        let events = &mut state.hosts[self.host].events;
        events.front().filter(|(due, _)| *due <= step)?;
        let (_, event) = events.pop_front()?;
        if let Event::Lost { endpoint } = event {
            state.ends.get_mut(&endpoint).expect("its news go with it").state = Standing::Lost;
        }
        Some(event)
    }

    fn wait(&mut self, _most: Duration) -> Result<(), EngineError> {
        self.net.0.borrow_mut().go_on();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Fixture};

    #[test]
    fn it_conforms() {
        let at = "10.0.0.2:0".parse().unwrap();
        for (seed, delay, early) in [(1, 1, false), (2, 7, true), (3, 20, false), (4, 3, true)] {
            let faults = Faults { delay, early, ..Faults::NONE };
            let make = || {
                let net = Net::new(seed, faults);
                [net.engine(), net.engine()]
            };
            conformance::run(&Fixture { make: &make, at });
        }
    }

    /// Whatever is cut: what has landed is a beginning of what was posted, and is told in order.
    #[test]
    fn a_cut_leaves_a_beginning() {
        let mut beginnings = [0; 9];
        for seed in 0..200 {
            let net = Net::new(seed, Faults { delay: 5, lose_completions: true, ..Faults::NONE });
            let [mut client, mut server] = [net.engine(), net.engine()];
            let queues = [client.open_queue(0).unwrap(), server.open_queue(0).unwrap()];
            let memories = [(); 2].map(|()| Memory::new(4096).unwrap());
            let (source, _) = client.register(&memories[0]).unwrap();
            let (_, token) = server.register(&memories[1]).unwrap();
            let at = server.listen("10.0.0.2:0".parse().unwrap()).unwrap();
            let endpoint = client.connect(at, queues[0], b"").unwrap();
            let mut news = [Vec::new(), Vec::new()];
            let mut posted = None;
            for step in 0..120 {
                client.poll(queues[0], &mut news[0]).unwrap();
                server.poll(queues[1], &mut news[1]).unwrap();
                if let Some(Event::Requested { request, .. }) = server.event() {
                    server.accept(request, queues[1], b"").unwrap();
                }
                if let Some(Event::Connected { .. }) = client.event() {
                    for data in 0..8 {
                        memories[0].write(data, &[1]);
                        let source = Source { memory: source, offset: data, len: 1 };
                        let target = Target { token, offset: data as u64 };
                        client.write(endpoint, source, target, data as u32, 0).unwrap();
                    }
                    posted = Some(step);
                }
                if posted.is_some_and(|at| step == at + 1 + seed % 40) {
                    net.cut(endpoint);
                }
            }
            let mut bytes = [0; 8];
            memories[1].read(0, &mut bytes);
            let landed = bytes.iter().take_while(|byte| **byte == 1).count();
            assert!(bytes[landed..].iter().all(|byte| *byte == 0), "{bytes:?}");
            let told = |news: &Completion| matches!(news, Completion::Immediate { .. });
            assert_eq!(news[1].iter().filter(|news| told(news)).count(), landed);
            beginnings[landed] += 1;
        }
        assert!(beginnings[1..8].iter().sum::<u32>() > 20, "cuts between: {beginnings:?}");
    }
}
