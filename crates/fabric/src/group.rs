//! A link group between two hosts (RFC 7609, 2.2 and 4.5): up to 255 connections over up to two links, without I/O or clock.
//!
//! [`Group::on`] takes what happens and says what is to be done. Each link goes by the table of [`link`](crate::link). Of the group itself:
//!
//! | what happens | what is done |
//! |---|---|
//! | a link is up | connections without one go over it; each goes over the link that has the fewest |
//! | a link is given up | its connections stop; they go on over another link when the peer has said what has come (DELETE LINK) |
//! | no link is up for [`Settings::patience`] | the group ends |
//! | the peer does not say DELETE LINK in time, the brokers' connection is lost, a word that cannot be | the group ends |
//! | a connection opens, on both ends, by the same slot | each end names its ring (CONFIRM RKEY) |
//! | it closes | each end asks for its ring (DELETE RKEY); the answer comes through the link, behind all writes, and the ring is free |
//! | the group ends | all endpoints are closed, and then all rings are free; what was not read goes on by TCP |
//!
//! Deviations from RFC 7609: the messages go over the brokers' connection, where order and delivery are TCP's, so CONFIRM RKEY has no answer;
//! both links are of one engine, so there is no ADD LINK CONTINUATION with other keys.

use crate::link::{LinkEvent, Standing, Step};
use crate::words::{LinkId, Llc, Ring, Seen, Slot, Word};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Links of a group, at the most.
pub const LINKS: usize = 2;

/// Which end of the TCP connection that the group began with (RFC 7609, 3.3): the server adds links.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// It connects.
    Client,
    /// It listens, there.
    Server(SocketAddr),
}

/// How a group behaves. Times in milliseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Links, 1 or 2 (`smcr_max_links_per_lgr`).
    pub links: usize,
    /// Connections, from 1 to 255 (`smcr_max_conns_per_lgr`).
    pub connections: usize,
    /// A link through which nothing came for so long is tested (`smcr_testlink_time`); 0: never.
    pub test_after: u64,
    /// How long the peer may take for an answer.
    pub answer_within: u64,
    /// How long a group may be without a link.
    pub patience: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            links: LINKS,
            connections: Slot::MOST,
            test_after: 30_000,
            answer_within: 2_000,
            patience: 2_000,
        }
    }
}

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is so late: milliseconds, never less than before.
    Tick(u64),
    /// The engine has connected a link.
    Connected(LinkId),
    /// The engine has lost a link, or could not connect it; or it is to be given up.
    Lost(LinkId),
    /// Something came through a link, of this number.
    Heard(u8),
    /// A word came through it.
    Word(u8, Word),
    /// The peer has said.
    Said(Llc),
    /// The brokers' connection is lost.
    ControlLost,
    /// A connection begins, whose ring here is this.
    Open(Slot, Ring),
    /// It is over at this end.
    Close(Slot),
    /// The peer has said what cannot be: what it tells of a connection's cursors does not fit.
    Broken,
}

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Connect an endpoint. That fails: [`Event::Lost`].
    Connect(LinkId, SocketAddr),
    /// Write a word through a link.
    Tell(u8, Word),
    /// Close a link's endpoint.
    CloseLink(u8),
    /// Say DELETE LINK, with what has come of each connection: the endpoint is closed by now, so that is final. And with these answers.
    SayDelete(LinkId, Vec<(Slot, u32)>),
    /// Say this.
    Say(Llc),
    /// The peer's ring for a connection.
    Write(Slot, Ring),
    /// Go on with a connection over a link, from what the peer has seen.
    Go(Slot, u8, Seen),
    /// Send nothing of a connection.
    Stop(Slot),
    /// Write no more into the peer's ring.
    Forget(Slot),
    /// Nothing lands in this end's ring any more.
    Release(Slot),
    /// The group is over.
    End,
}

/// A link group's state.
#[derive(Debug)]
pub struct Group {
    role: Role,
    settings: Settings,
    now: u64,
    links: [Link; LINKS],
    connections: BTreeMap<Slot, Connection>,
    /// Rings that this end has named.
    named: u32,
    /// DELETE RKEYs that were answered through a link: the last of each slot.
    answered: BTreeMap<Slot, (u32, u8)>,
    /// Since when no link is up.
    stranded: Option<u64>,
    ended: bool,
}

#[derive(Copy, Clone, Debug)]
struct Link {
    standing: Standing,
    life: u32,
    /// When it came to stand there, or something was heard.
    since: u64,
}

#[derive(Copy, Clone, Debug)]
struct Connection {
    ours: Ours,
    theirs: Theirs,
    /// It has begun at this end.
    is_open: bool,
    link: Option<u8>,
    /// What the peer had seen when the last link was given up.
    seen: Seen,
}

/// The ring at this end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Ours {
    /// Not named yet, or free again.
    Free,
    /// By a serial number.
    Named(u32),
    /// Asked for: the answer is awaited.
    Asked(u32),
}

/// The ring at the other end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Theirs {
    Unknown,
    /// By a serial number of the peer's.
    Named(u32, Ring),
    /// The peer wants it; the answer has to wait for a link.
    Owed(u32),
}

/// A word that cannot be.
struct Absurd;

impl Group {
    /// A group without links or connections, at a time as [`Event::Tick`] has it.
    pub fn new(role: Role, settings: Settings, now: u64) -> Self {
        let down = Link { standing: Standing::Down, life: 0, since: now };
        Self {
            role,
            settings,
            now,
            links: [down; LINKS],
            connections: BTreeMap::new(),
            named: 0,
            answered: BTreeMap::new(),
            stranded: Some(now),
            ended: false,
        }
    }

    /// A slot for one more connection: `None`, there has to be another group.
    pub fn free_slot(&self) -> Option<Slot> {
        if self.connections.len() >= self.settings.connections {
            return None;
        }
        Slot::all().find(|slot| !self.connections.contains_key(slot))
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Where a link stands.
    pub fn link(&self, number: u8) -> Standing {
        self.links[usize::from(number)].standing
    }

    /// Whether a peer's endpoint is expected for this link.
    pub fn expects(&self, link: LinkId) -> bool {
        self.life(link).is_ok_and(|at| self.links[at].standing == Standing::Connecting)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes what happens; adds what is to be done.
    pub fn on(&mut self, event: Event, actions: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        let said = match event {
            Event::Tick(now) => self.tick(now, actions),
            Event::Connected(link) => self.of_engine(link, LinkEvent::Connected, actions),
            Event::Lost(link) => self.of_engine(link, LinkEvent::Lost, actions),
            Event::Heard(number) => {
                self.links[usize::from(number)].since = self.now;
                self.step(usize::from(number), LinkEvent::Heard, &[], actions)
            }
            Event::Word(number, word) => self.word(number, word, actions),
            Event::Said(llc) => self.said(llc, actions),
            Event::ControlLost | Event::Broken => Err(Absurd),
            Event::Open(slot, ring) => {
                self.open(slot, ring, actions);
                Ok(())
            }
            Event::Close(slot) => {
                self.close(slot, actions);
                Ok(())
            }
        };
        if said.is_err() {
            self.end(actions);
        } else {
            self.place(actions);
        }
    }

    fn connection(&mut self, slot: Slot) -> &mut Connection {
        self.connections.entry(slot).or_insert(Connection {
            ours: Ours::Free,
            theirs: Theirs::Unknown,
            is_open: false,
            link: None,
            seen: Seen { slot, sequence: 0, cursor: 0 },
        })
    }

    /// Each end opens in its own time: the peer may have named its ring before.
    fn open(&mut self, slot: Slot, ring: Ring, actions: &mut Vec<Action>) {
        self.named += 1;
        let serial = self.named;
        let connection = self.connection(slot);
        (connection.ours, connection.is_open) = (Ours::Named(serial), true);
        actions.push(Action::Say(Llc::ConfirmRkey { slot, serial, ring }));
        if let Theirs::Named(_, theirs) = connection.theirs {
            actions.push(Action::Write(slot, theirs));
        }
    }

    fn close(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        if let Some(connection) = self.connections.get_mut(&slot)
            && let Ours::Named(serial) = connection.ours
        {
            connection.ours = Ours::Asked(serial);
            actions.push(Action::Say(Llc::DeleteRkey { slot }));
        }
    }

    /// The index of a link that lives this life.
    fn life(&self, link: LinkId) -> Result<usize, Absurd> {
        let at = usize::from(link.number);
        let lives = self.links.get(at).is_some_and(|one| one.life == link.life && link.life > 0);
        if lives { Ok(at) } else { Err(Absurd) }
    }

    /// What the engine tells may be of an earlier life.
    fn of_engine(&mut self, link: LinkId, event: LinkEvent, actions: &mut Vec<Action>) -> Result<(), Absurd> {
        match self.life(link) {
            Ok(at) => self.step(at, event, &[], actions),
            Err(Absurd) => Ok(()),
        }
    }

    fn tick(&mut self, now: u64, actions: &mut Vec<Action>) -> Result<(), Absurd> {
        self.now = now;
        for at in 0..self.settings.links {
            let Link { standing, since, .. } = self.links[at];
            let silent = now.saturating_sub(since);
            match standing {
                Standing::Down => self.add(at, actions)?,
                Standing::Up if self.settings.test_after == 0 || silent < self.settings.test_after => {}
                Standing::Up => self.step(at, LinkEvent::Silent, &[], actions)?,
                _ if silent < self.settings.answer_within => {}
                // Nobody knows what has come, and what is still to land.
                Standing::Fenced => return Err(Absurd),
                _ => self.step(at, LinkEvent::Silent, &[], actions)?,
            }
        }
        let is_stranded = !self.links.iter().any(|link| link.standing.is_usable());
        self.stranded = if is_stranded { self.stranded.or(Some(now)) } else { None };
        match self.stranded {
            Some(since) if now.saturating_sub(since) > self.settings.patience => Err(Absurd),
            _ => Ok(()),
        }
    }

    /// The server adds a link that is not there.
    fn add(&mut self, at: usize, actions: &mut Vec<Action>) -> Result<(), Absurd> {
        let Role::Server(address) = self.role else { return Ok(()) };
        self.links[at].life += 1;
        let link = LinkId { number: at as u8, life: self.links[at].life };
        actions.push(Action::Say(Llc::AddLink { link, at: address }));
        self.step(at, LinkEvent::Add, &[], actions)
    }

    fn word(&mut self, number: u8, word: Word, actions: &mut Vec<Action>) -> Result<(), Absurd> {
        let at = usize::from(number);
        let is_server = matches!(self.role, Role::Server(_));
        match word {
            Word::ConfirmLink if !is_server => self.step(at, LinkEvent::Confirm, &[], actions),
            Word::LinkConfirmed if is_server => self.step(at, LinkEvent::Confirm, &[], actions),
            Word::ConfirmLink | Word::LinkConfirmed => Err(Absurd),
            Word::TestLink => {
                if self.links[at].standing.is_usable() {
                    actions.push(Action::Tell(number, Word::LinkTested));
                }
                Ok(())
            }
            // That it was heard is all.
            Word::LinkTested | Word::Consumed(_) => Ok(()),
            Word::RkeyDeleted(slot) => match self.connections.get(&slot) {
                Some(Connection { ours: Ours::Asked(_), .. }) => {
                    self.release(slot, actions);
                    Ok(())
                }
                _ => Err(Absurd),
            },
        }
    }

    /// The ring at this end is free.
    fn release(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        self.connection(slot).ours = Ours::Free;
        actions.push(Action::Release(slot));
        self.forget_if_over(slot);
    }

    fn said(&mut self, llc: Llc, actions: &mut Vec<Action>) -> Result<(), Absurd> {
        match llc {
            Llc::AddLink { link, at } => {
                let number = usize::from(link.number);
                let is_next = |one: &Link| one.standing == Standing::Down && link.life > one.life;
                if self.role != Role::Client || !self.links.get(number).is_some_and(is_next) {
                    return Err(Absurd);
                }
                self.links[number].life = link.life;
                self.step(number, LinkEvent::Add, &[], actions)?;
                actions.push(Action::Connect(link, at));
                Ok(())
            }
            Llc::DeleteLink { link, seen, deleted } => {
                let at = self.life(link)?;
                if self.links[at].standing == Standing::Down {
                    return Err(Absurd);
                }
                self.step(at, LinkEvent::Deleted, &seen, actions)?;
                // Neither end has that link any more. So what went through it has landed, or never will.
                for (slot, serial) in deleted {
                    if self.connections.get(&slot).is_some_and(|one| one.ours == Ours::Asked(serial)) {
                        self.release(slot, actions);
                    }
                }
                Ok(())
            }
            Llc::ConfirmRkey { slot, serial, ring } => {
                let connection = self.connection(slot);
                let fits = ring.size.is_power_of_two() && ring.size <= 1 << 23;
                if !fits || connection.theirs != Theirs::Unknown {
                    return Err(Absurd);
                }
                connection.theirs = Theirs::Named(serial, ring);
                if connection.is_open {
                    actions.push(Action::Write(slot, ring));
                }
                // So the answer of the slot's last use has come.
                self.answered.remove(&slot);
                Ok(())
            }
            Llc::DeleteRkey { slot } => {
                let Some(connection) = self.connections.get_mut(&slot) else { return Err(Absurd) };
                let Theirs::Named(serial, _) = connection.theirs else { return Err(Absurd) };
                connection.theirs = Theirs::Owed(serial);
                actions.push(Action::Forget(slot));
                Ok(())
            }
        }
    }

    /// Moves a link by its table, and does what that asks for.
    fn step(
        &mut self,
        at: usize,
        event: LinkEvent,
        seen: &[Seen],
        actions: &mut Vec<Action>,
    ) -> Result<(), Absurd> {
        let number = at as u8;
        let (to, steps) = self.links[at].standing.on(event);
        if to != self.links[at].standing {
            self.links[at].since = self.now;
            self.links[at].standing = to;
        }
        let is_server = matches!(self.role, Role::Server(_));
        for step in steps {
            match step {
                Step::Confirm if is_server => actions.push(Action::Tell(number, Word::ConfirmLink)),
                Step::Confirmed if !is_server => actions.push(Action::Tell(number, Word::LinkConfirmed)),
                Step::Connect | Step::Confirm | Step::Confirmed => {}
                Step::Test => actions.push(Action::Tell(number, Word::TestLink)),
                Step::Close => {
                    let over = self.connections.iter().filter(|(_, one)| one.link == Some(number));
                    actions.extend(over.map(|(slot, _)| Action::Stop(*slot)));
                    actions.push(Action::CloseLink(number));
                }
                Step::Delete => {
                    let through = self.answered.iter().filter(|(_, (_, link))| *link == number);
                    let deleted = through.map(|(slot, (serial, _))| (*slot, *serial)).collect();
                    self.answered.retain(|_, (_, link)| *link != number);
                    actions.push(Action::SayDelete(LinkId { number, life: self.links[at].life }, deleted));
                }
                Step::Move => self.unplace(number, seen)?,
            }
        }
        Ok(())
    }

    /// A link is gone at both ends: its connections have none.
    fn unplace(&mut self, number: u8, seen: &[Seen]) -> Result<(), Absurd> {
        for (slot, connection) in &mut self.connections {
            if connection.link != Some(number) {
                continue;
            }
            connection.link = None;
            // Of a connection that the peer does not know any more nothing is sent any more.
            if let Some(seen) = seen.iter().find(|seen| seen.slot == *slot) {
                connection.seen = *seen;
            } else if matches!(connection.theirs, Theirs::Named(..)) {
                return Err(Absurd);
            }
        }
        Ok(())
    }

    /// Gives connections without a link one that is up, that with the fewest.
    fn place(&mut self, actions: &mut Vec<Action>) {
        let slots: Vec<Slot> = self.connections.keys().copied().collect();
        for slot in slots {
            if self.connections[&slot].is_open && self.connections[&slot].link.is_none() {
                let load =
                    |number: &u8| self.connections.values().filter(|one| one.link == Some(*number)).count();
                let up = (0..LINKS as u8).filter(|number| self.link(*number).is_usable());
                let Some(link) = up.min_by_key(load) else { return };
                let connection = self.connection(slot);
                connection.link = Some(link);
                actions.push(Action::Go(slot, link, connection.seen));
            }
            self.answer(slot, actions);
        }
    }

    /// What is owed of DELETE RKEY is answered through the link, behind all that was written. Where nothing was, any will do.
    fn answer(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        let Connection { theirs: Theirs::Owed(serial), link, is_open, .. } = self.connections[&slot] else {
            return;
        };
        let any = (0..LINKS as u8).find(|number| !is_open && self.link(*number).is_usable());
        if let Some(link) = link.or(any).filter(|number| self.link(*number).is_usable()) {
            actions.push(Action::Tell(link, Word::RkeyDeleted(slot)));
            self.answered.insert(slot, (serial, link));
            self.connection(slot).theirs = Theirs::Unknown;
            self.forget_if_over(slot);
        }
    }

    fn forget_if_over(&mut self, slot: Slot) {
        let is_over = |one: &Connection| one.ours == Ours::Free && one.theirs == Theirs::Unknown;
        if self.connections.get(&slot).is_some_and(is_over) {
            self.connections.remove(&slot);
        }
    }

    /// All is over: nothing lands any more once the endpoints are closed.
    fn end(&mut self, actions: &mut Vec<Action>) {
        self.ended = true;
        for (number, link) in self.links.iter_mut().enumerate() {
            if !matches!(link.standing, Standing::Down | Standing::Fenced) {
                actions.push(Action::CloseLink(number as u8));
            }
            link.standing = Standing::Down;
        }
        for (slot, connection) in std::mem::take(&mut self.connections) {
            actions.push(Action::Stop(slot));
            if connection.ours != Ours::Free {
                actions.push(Action::Release(slot));
            }
        }
        actions.push(Action::End);
    }
}

#[cfg(test)]
mod tests;
