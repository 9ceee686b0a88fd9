//! Carries the connections of one link group over an engine: does what [`Group`] asks for, and moves bytes by [`flow`](crate::flow).
//!
//! Bytes go from the sender's ring into the receiver's by the engine alone: none is copied here. Connections take turns, a chunk each, and
//! what is under way on a link has a bound, so that a message waits for few bytes of a bulk stream.

use crate::engine::{
    Completion, Endpoint, Engine, EngineError, Event as EngineEvent, Queue, RToken, Registered, Request,
    Source, Target,
};
use crate::flow::{Receiver, Sender};
use crate::group::{Action, Event, Group, LINKS};
use crate::memory::Memory;
use crate::words::{CURSOR, Immediate, LinkId, Llc, Ring, Seen, Slot, Word};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

/// How much at once.
#[derive(Copy, Clone, Debug)]
pub struct Pace {
    /// Most bytes of a connection's turn.
    pub chunk: usize,
    /// Most bytes under way on a link: a link has at least one chunk.
    pub under_way: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { chunk: 256 << 10, under_way: 1 << 20 }
    }
}

/// The rings of a connection at this end.
#[derive(Clone, Debug)]
pub struct Rings {
    /// What the local program sends stands here.
    pub sends: Memory,
    /// What the peer's program sends lands here.
    pub receives: Memory,
    /// Byte at which the ring begins, in each.
    pub offset: usize,
    /// Bytes of each ring, and of the peer's: a power of two up to 2^23.
    pub size: u32,
}

/// One link group on one engine.
pub struct Carrier {
    group: Group,
    queue: Queue,
    pace: Pace,
    /// A word for each slot: up to where the peer's program has read. The peer writes there.
    page: Memory,
    page_token: RToken,
    /// What is written into the peer's page.
    cursors: Memory,
    cursors_registered: Registered,
    peer_page: Option<RToken>,
    links: [Option<Path>; LINKS],
    connections: BTreeMap<Slot, Connection>,
    /// Whose turn was last.
    turn: Option<Slot>,
    says: VecDeque<Llc>,
    released: Vec<Slot>,
    news: Vec<Completion>,
    /// Turns without news in a row.
    idle: u32,
    /// Writes that were posted, and bytes of programs with them.
    pub posted: Posted,
}

/// What a carrier has done.
#[derive(Copy, Clone, Default, Debug)]
pub struct Posted {
    /// Writes of programs' bytes.
    pub writes: u64,
    /// Bytes, those that were written again each time.
    pub bytes: u64,
    /// Words, consumer cursors among them.
    pub words: u64,
}

/// A link's endpoint.
struct Path {
    id: LinkId,
    endpoint: Endpoint,
    /// Words to be written.
    words: VecDeque<Word>,
    /// Bytes whose completion has not come.
    under_way: usize,
    /// Something came since the group was told so.
    heard: bool,
}

struct Connection {
    rings: Rings,
    sends: Registered,
    /// `None`: free again.
    receives: Option<Registered>,
    receiver: Receiver,
    sender: Sender,
    /// The peer's ring. `None`: not named yet, or not ours to write into any more.
    target: Option<Ring>,
    link: Option<u8>,
    /// Bytes of it that are under way, and through which link.
    under_way: (usize, u8),
    /// The peer has asked for its ring, and is answered as soon as nothing is under way.
    answered: bool,
    /// The consumer cursor that the peer was told last.
    told: u64,
}

/// Idle turns from one look for news of connections to the next.
const EVENTS_EVERY: u32 = 8;
/// Bytes of a page of cursors.
const PAGE: usize = 4096;
/// What either end says at connecting: number, life, and the page's token.
const HELLO: usize = 24;

impl Carrier {
    /// For a group whose links use this queue. Errors: those of memory and of registering it.
    ///
    /// # Panics
    /// A chunk of `pace` has 2^24 bytes or more.
    pub fn new(engine: &mut dyn Engine, queue: Queue, group: Group, pace: Pace) -> Result<Self, EngineError> {
        assert!(pace.chunk <= CURSOR as usize);
        let memory = || Memory::new(PAGE).map_err(|_| EngineError::Failed("a page of cursors", libc::ENOMEM));
        let (page, cursors) = (memory()?, memory()?);
        let (_, page_token) = engine.register(&page)?;
        let (cursors_registered, _) = engine.register(&cursors)?;
        Ok(Self {
            group,
            queue,
            pace,
            page,
            page_token,
            cursors,
            cursors_registered,
            peer_page: None,
            links: [None, None],
            connections: BTreeMap::new(),
            turn: None,
            says: VecDeque::new(),
            released: Vec::new(),
            news: Vec::new(),
            idle: 0,
            posted: Posted::default(),
        })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The endpoint of a link, for tests that cut it.
    pub fn endpoint(&self, number: u8) -> Option<Endpoint> {
        self.links[usize::from(number)].as_ref().map(|path| path.endpoint)
    }

    /// What is to be said to the peer, over the brokers' connection, in order.
    pub fn says(&mut self) -> Option<Llc> {
        self.says.pop_front()
    }

    /// Connections whose ring at this end is free: nothing lands there any more.
    pub fn released(&mut self) -> Option<Slot> {
        self.released.pop()
    }

    /// A slot for one more connection. `None`: there has to be another group.
    pub fn free_slot(&self) -> Option<Slot> {
        self.group.free_slot().filter(|slot| !self.connections.contains_key(slot))
    }

    /// A connection begins. The peer's carrier opens it by the same slot. Errors: those of registering its rings.
    pub fn open(&mut self, engine: &mut dyn Engine, slot: Slot, rings: Rings) -> Result<(), EngineError> {
        let (sends, _) = engine.register(&rings.sends)?;
        let (receives, token) = engine.register(&rings.receives)?;
        let ring = Ring { token, offset: rings.offset as u64, size: rings.size };
        let connection = Connection {
            sends,
            receives: Some(receives),
            receiver: Receiver::new(rings.size),
            sender: Sender::new(rings.size),
            target: None,
            link: None,
            under_way: (0, 0),
            answered: false,
            told: 0,
            rings,
        };
        self.connections.insert(slot, connection);
        self.on(engine, Event::Open(slot, ring));
        Ok(())
    }

    /// A connection is over at this end. [`Carrier::released`] says when its ring is free.
    pub fn close(&mut self, engine: &mut dyn Engine, slot: Slot) {
        self.on(engine, Event::Close(slot));
    }

    /// Room in the ring that the local program sends by, and the byte at which it begins. `None`: no such connection.
    pub fn room(&self, slot: Slot) -> Option<(u64, usize)> {
        let connection = self.connections.get(&slot)?;
        let at = connection.sender.produced() as usize & (connection.rings.size as usize - 1);
        Some((connection.sender.room(), at))
    }

    /// The local program has put `n` bytes in.
    ///
    /// # Panics
    /// There was no room, or there is no such connection.
    pub fn produce(&mut self, slot: Slot, n: u64) {
        self.connections.get_mut(&slot).expect("a connection").sender.produce(n);
    }

    /// Whether the peer's program has read all that was sent, as far as is known here.
    pub fn is_idle(&self, slot: Slot) -> bool {
        self.connections.get(&slot).is_none_or(|connection| connection.sender.is_idle())
    }

    /// Bytes that the local program has not read, and where they begin. `None`: no such connection.
    pub fn unread(&self, slot: Slot) -> Option<(u64, usize)> {
        self.connections.get(&slot).map(|connection| connection.receiver.unread())
    }

    /// The local program has read `n` bytes.
    ///
    /// # Panics
    /// They were not there, or there is no such connection.
    pub fn consume(&mut self, slot: Slot, n: u64) {
        let connection = self.connections.get_mut(&slot).expect("a connection");
        connection.receiver.consume(n);
        let consumed = connection.receiver.consumed();
        // As the kernel's SMC: not for each read, but before the sender runs out of room.
        if consumed - connection.told >= u64::from(connection.rings.size / 4) {
            self.tell_consumed(slot);
        }
    }

    /// The brokers' connection brings this.
    pub fn said(&mut self, engine: &mut dyn Engine, llc: Llc) {
        self.on(engine, Event::Said(llc));
    }

    /// The brokers' connection is lost: the group ends.
    pub fn control_lost(&mut self, engine: &mut dyn Engine) {
        self.on(engine, Event::ControlLost);
    }

    /// It is so late, in milliseconds: to be called ten times a second or so.
    pub fn tick(&mut self, engine: &mut dyn Engine, now: u64) {
        for at in 0..LINKS {
            let heard = self.links[at].as_mut().is_some_and(|path| std::mem::take(&mut path.heard));
            if heard {
                self.on(engine, Event::Heard(at as u8));
            }
        }
        self.on(engine, Event::Tick(now));
    }

    /// Takes the engine's news, and writes what is to be written. The engine is this carrier's alone.
    pub fn turn(&mut self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let mut news = std::mem::take(&mut self.news);
        engine.poll(self.queue, &mut news)?;
        // Looking for news of connections costs as much as looking for news of writes, and there are few.
        self.idle = if news.is_empty() { self.idle + 1 } else { 0 };
        if self.idle % EVENTS_EVERY == 1 {
            while let Some(event) = engine.event() {
                self.event(engine, event)?;
            }
        }
        for completion in news.drain(..) {
            self.completion(engine, completion);
        }
        self.news = news;
        self.flush(engine);
        Ok(())
    }

    fn event(&mut self, engine: &mut dyn Engine, event: EngineEvent) -> Result<(), EngineError> {
        match event {
            EngineEvent::Requested { request, hello } => self.requested(engine, request, &hello)?,
            EngineEvent::Connected { endpoint, hello } => {
                let Some(at) = self.path(endpoint) else { return Ok(()) };
                let id = self.links[at].as_ref().expect("it was found").id;
                if let Some((_, token)) = parse_hello(&hello) {
                    self.peer_page = Some(token);
                }
                self.on(engine, Event::Connected(id));
            }
            EngineEvent::Lost { endpoint } => match self.path(endpoint) {
                Some(at) => {
                    let id = self.links[at].as_ref().expect("it was found").id;
                    self.on(engine, Event::Lost(id));
                }
                None => engine.close(endpoint),
            },
        }
        Ok(())
    }

    /// A peer's endpoint for a link that is expected; all others are refused.
    fn requested(
        &mut self,
        engine: &mut dyn Engine,
        request: Request,
        hello: &[u8],
    ) -> Result<(), EngineError> {
        let expected = parse_hello(hello)
            .filter(|(id, _)| self.group.expects(*id) && self.links[usize::from(id.number)].is_none());
        let Some((id, token)) = expected else { return engine.refuse(request) };
        match engine.accept(request, self.queue, &self.hello(id)) {
            Ok(endpoint) => {
                self.peer_page = Some(token);
                self.links[usize::from(id.number)] = Some(Path::new(id, endpoint));
            }
            Err(_) => self.on(engine, Event::Lost(id)),
        }
        Ok(())
    }

    fn hello(&self, id: LinkId) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..4].copy_from_slice(&u32::from(id.number).to_be_bytes());
        hello[4..8].copy_from_slice(&id.life.to_be_bytes());
        hello[8..16].copy_from_slice(&self.page_token.key.to_be_bytes());
        hello[16..].copy_from_slice(&self.page_token.address.to_be_bytes());
        hello
    }

    fn path(&self, endpoint: Endpoint) -> Option<usize> {
        self.links.iter().position(|path| path.as_ref().is_some_and(|path| path.endpoint == endpoint))
    }

    fn completion(&mut self, engine: &mut dyn Engine, completion: Completion) {
        match completion {
            Completion::Written { endpoint, context, done } => {
                let Some(at) = self.path(endpoint) else { return };
                let path = self.links[at].as_mut().expect("it was found");
                let (slot, len) = ((context >> 24) as u8, (context & CURSOR) as usize);
                let id = path.id;
                path.under_way -= len;
                if let Some(slot) = Slot::new(slot) {
                    let connection =
                        self.connections.get_mut(&slot).expect("kept while something is under way");
                    connection.under_way.0 -= len;
                    self.forget_if_over(engine, slot);
                }
                if !done {
                    self.on(engine, Event::Lost(id));
                }
            }
            Completion::Immediate { endpoint, data } => {
                let Some(at) = self.path(endpoint) else { return };
                self.links[at].as_mut().expect("it was found").heard = true;
                if self.immediate(engine, at as u8, data).is_none() {
                    self.on(engine, Event::Broken);
                }
            }
        }
    }

    /// What the peer tells. `None`: it cannot be.
    fn immediate(&mut self, engine: &mut dyn Engine, link: u8, data: u32) -> Option<()> {
        match Immediate::unpack(data)? {
            Immediate::Produced(slot, cursor) => {
                let connection = self.connections.get_mut(&slot)?;
                connection.receives?;
                connection.receiver.landed(cursor).ok()
            }
            Immediate::Word(Word::Consumed(slot)) => {
                // Told after it has landed. It may be a later one's value already.
                let cursor = self.page.word(8 * usize::from(slot.number())).load(Ordering::Acquire);
                // The peer may tell it once more when the connection is over at this end.
                self.connections.get_mut(&slot).map_or(Some(()), |one| one.sender.consumed(cursor).ok())
            }
            Immediate::Word(word) => {
                self.on(engine, Event::Word(link, word));
                Some(())
            }
        }
    }

    /// Tells the group, and does what it asks for.
    fn on(&mut self, engine: &mut dyn Engine, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut actions = Vec::new();
        while let Some(event) = events.pop_front() {
            self.group.on(event, &mut actions);
            for action in actions.drain(..) {
                events.extend(self.act(engine, action));
            }
        }
    }

    /// Does one thing; what comes of it at once.
    fn act(&mut self, engine: &mut dyn Engine, action: Action) -> Option<Event> {
        match action {
            Action::Connect(id, at) => match engine.connect(at, self.queue, &self.hello(id)) {
                Ok(endpoint) => self.links[usize::from(id.number)] = Some(Path::new(id, endpoint)),
                Err(_) => return Some(Event::Lost(id)),
            },
            Action::Tell(link, word) => {
                if let Word::RkeyDeleted(slot) = word
                    && let Some(connection) = self.connections.get_mut(&slot)
                {
                    connection.answered = true;
                }
                if let Some(path) = &mut self.links[usize::from(link)] {
                    path.words.push_back(word);
                }
            }
            Action::CloseLink(link) => {
                if let Some(path) = self.links[usize::from(link)].take() {
                    engine.close(path.endpoint);
                    self.lose(engine, link);
                }
            }
            Action::SayDelete(link, deleted) => {
                let receiving = self.connections.iter().filter(|(_, one)| one.receives.is_some());
                let seen: Vec<Seen> = receiving.map(|(slot, one)| one.receiver.seen(*slot)).collect();
                self.says.push_back(Llc::DeleteLink { link, seen, deleted });
            }
            Action::Say(llc) => self.says.push_back(llc),
            Action::Write(slot, ring) => {
                let connection = self.connections.get_mut(&slot);
                match connection.filter(|connection| ring.size == connection.rings.size) {
                    Some(connection) => connection.target = Some(ring),
                    None => return Some(Event::Broken),
                }
            }
            Action::Go(slot, link, seen) => return self.go(slot, link, seen),
            Action::Stop(slot) => {
                if let Some(connection) = self.connections.get_mut(&slot) {
                    connection.link = None;
                }
            }
            Action::Forget(slot) => {
                if let Some(connection) = self.connections.get_mut(&slot) {
                    connection.target = None;
                }
            }
            Action::Release(slot) => self.release(engine, slot),
            Action::End => {}
        }
        None
    }

    fn go(&mut self, slot: Slot, link: u8, seen: Seen) -> Option<Event> {
        let connection = self.connections.get_mut(&slot)?;
        connection.link = Some(link);
        if connection.target.is_some() && connection.sender.resume(seen).is_err() {
            return Some(Event::Broken);
        }
        // What was told of it on the last link may not have come.
        if connection.told > 0 {
            self.tell_consumed(slot);
        }
        None
    }

    fn release(&mut self, engine: &mut dyn Engine, slot: Slot) {
        let Some(connection) = self.connections.get_mut(&slot) else { return };
        if let Some(receives) = connection.receives.take() {
            // It was registered, and nothing is under way into it.
            let _ = engine.deregister(receives);
            self.released.push(slot);
        }
        self.forget_if_over(engine, slot);
    }

    /// Nothing is under way through a link whose endpoint was closed.
    fn lose(&mut self, engine: &mut dyn Engine, link: u8) {
        let slots: Vec<Slot> = self.connections.keys().copied().collect();
        for slot in slots {
            let connection = self.connections.get_mut(&slot).expect("it is there");
            if connection.under_way.1 == link {
                connection.under_way.0 = 0;
            }
            self.forget_if_over(engine, slot);
        }
    }

    /// Both rings are given back, and nothing is under way from the one at this end.
    fn forget_if_over(&mut self, engine: &mut dyn Engine, slot: Slot) {
        let is_over = |one: &Connection| one.receives.is_none() && one.answered && one.under_way.0 == 0;
        if self.connections.get(&slot).is_some_and(is_over) {
            let connection = self.connections.remove(&slot).expect("it is there");
            // It was registered.
            let _ = engine.deregister(connection.sends);
        }
    }

    /// Tells the peer how far its bytes were read, if there is a link; if not, that is done when there is one again.
    fn tell_consumed(&mut self, slot: Slot) {
        let connection = self.connections.get_mut(&slot).expect("a connection");
        connection.told = connection.receiver.consumed();
        self.cursors.word(8 * usize::from(slot.number())).store(connection.told, Ordering::Release);
        if let Some(path) = connection.link.and_then(|link| self.links[usize::from(link)].as_mut()) {
            let word = Word::Consumed(slot);
            // One that waits yet takes the later value along.
            if !path.words.contains(&word) {
                path.words.push_back(word);
            }
        }
    }

    /// Writes what is to be written.
    fn flush(&mut self, engine: &mut dyn Engine) {
        for at in 0..LINKS {
            if self.flush_words(engine, at).is_err() {
                let id = self.links[at].as_ref().expect("a word failed there").id;
                self.on(engine, Event::Lost(id));
            }
        }
        let after = self.turn.map_or(0, Slot::number);
        let behind = self.connections.keys().copied().filter(|slot| slot.number() > after);
        let before = self.connections.keys().copied().filter(|slot| slot.number() <= after);
        let order: Vec<Slot> = behind.chain(before).collect();
        let mut went_on = true;
        while went_on {
            went_on = false;
            for slot in &order {
                match self.write(engine, *slot) {
                    Ok(wrote) => {
                        if wrote {
                            self.turn = Some(*slot);
                        }
                        went_on |= wrote;
                    }
                    Err(id) => self.on(engine, Event::Lost(id)),
                }
            }
        }
    }

    fn flush_words(&mut self, engine: &mut dyn Engine, at: usize) -> Result<(), EngineError> {
        let (Some(path), Some(token)) = (&mut self.links[at], self.peer_page) else { return Ok(()) };
        while let Some(word) = path.words.front() {
            if let Word::RkeyDeleted(slot) = word
                && self.connections.get(slot).is_some_and(|connection| connection.under_way.0 > 0)
            {
                return Ok(());
            }
            // A word of the link itself writes into the page's first word, which is nobody's.
            let slot = if let Word::Consumed(slot) = word { slot.number() } else { 0 };
            let offset = 8 * usize::from(slot);
            let source = Source { memory: self.cursors_registered, offset, len: 8 };
            let target = Target { token, offset: offset as u64 };
            match engine.write(path.endpoint, source, target, Immediate::Word(*word).pack(), 0) {
                Ok(()) => path.words.pop_front(),
                Err(EngineError::Full) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.posted.words += 1;
        }
        Ok(())
    }

    /// Writes a connection's next chunk. Says whether there was one and room for it; errors: the link that has failed.
    fn write(&mut self, engine: &mut dyn Engine, slot: Slot) -> Result<bool, LinkId> {
        let Some(connection) = self.connections.get_mut(&slot) else { return Ok(false) };
        let path = connection.link.and_then(|link| self.links[usize::from(link)].as_mut());
        let (Some(path), Some(ring)) = (path, connection.target) else { return Ok(false) };
        if path.under_way > 0 && path.under_way + self.pace.chunk > self.pace.under_way {
            return Ok(false);
        }
        let Some(chunk) = connection.sender.next(self.pace.chunk) else { return Ok(false) };
        let source = Source {
            memory: connection.sends,
            offset: connection.rings.offset + chunk.offset,
            len: chunk.len,
        };
        let target = Target { token: ring.token, offset: ring.offset + chunk.offset as u64 };
        let told = Immediate::Produced(slot, chunk.end as u32 & CURSOR).pack();
        let context = u32::from(slot.number()) << 24 | chunk.len as u32;
        match engine.write(path.endpoint, source, target, told, context) {
            Ok(()) => {
                connection.sender.posted(chunk);
                path.under_way += chunk.len;
                connection.under_way = (connection.under_way.0 + chunk.len, path.id.number);
                self.posted.writes += 1;
                self.posted.bytes += chunk.len as u64;
                Ok(true)
            }
            Err(EngineError::Full) => Ok(false),
            Err(_) => Err(path.id),
        }
    }
}

impl Path {
    fn new(id: LinkId, endpoint: Endpoint) -> Self {
        Self { id, endpoint, words: VecDeque::new(), under_way: 0, heard: false }
    }
}

/// What a peer says at connecting. `None`: not that.
fn parse_hello(hello: &[u8]) -> Option<(LinkId, RToken)> {
    let hello: &[u8; HELLO] = hello.try_into().ok()?;
    let word = |at: usize| u32::from_be_bytes(hello[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_be_bytes(hello[at..at + 8].try_into().expect("eight bytes"));
    let number = u8::try_from(word(0)).ok().filter(|number| usize::from(*number) < LINKS)?;
    Some((LinkId { number, life: word(4) }, RToken { key: long(8), address: long(16) }))
}

#[cfg(test)]
mod tests;
