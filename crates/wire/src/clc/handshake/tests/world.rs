//! Two ends and a device, in which one thing goes wrong.

use std::collections::VecDeque;

use super::*;
use crate::Reason;
use crate::clc::handshake::{Client, Fallback, Input, Next, Opened, Server, Step};

pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;

/// What goes wrong, and at which message or device request, counted from 0.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// One message is lost.
    Lose(usize),
    /// This message and all after it are lost, as when the broker dies.
    LoseFrom(usize),
    /// One message arrives with this byte inverted.
    Corrupt(usize, usize),
    /// One message arrives twice.
    Double(usize),
    /// The device refuses one request.
    Refuse(usize),
    /// The device answers one request only after everybody has given up.
    Dawdle(usize),
    /// The device attaches a DMB of another size than it has, or answers a registration as an attachment.
    Confuse(usize),
    /// After so many events each side is told that the other has gone.
    Vanish(usize),
    /// After so many events each side runs out of time.
    TimeOut(usize),
}

pub(super) enum Event {
    Clc(Vec<u8>),
    Registered(NamedDmb),
    Attached(NamedDmb),
    Refused,
    Timeout,
    Vanished,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    Open(Opened),
    Fallback(Fallback),
}

pub(super) enum Machine {
    Client(Client),
    Server(Server),
}

/// Two ends, and one device for both.
pub(super) struct World {
    locals: [LocalDevice; 2],
    machines: [Machine; 2],
    pub(super) ends: [Option<End>; 2],
    queue: VecDeque<(usize, Event)>,
    late: Vec<(usize, Event)>,
    /// What the device holds for each side.
    registered: [Vec<NamedDmb>; 2],
    attached: [Vec<NamedDmb>; 2],
    fault: Fault,
    pub(super) messages: usize,
    pub(super) requests: usize,
    pub(super) events: usize,
}

impl World {
    pub(super) fn run(locals: [LocalDevice; 2], first_contact: [bool; 2], fault: Fault) -> World {
        let mut out = [0; MAX_LEN];
        let (client, first) = Client::start(&locals[CLIENT], first_contact[CLIENT], 7, &mut out);
        let server = Server::new(first_contact[SERVER], 8);
        let mut world = World {
            locals,
            machines: [Machine::Client(client), Machine::Server(server)],
            ends: [None; 2],
            queue: VecDeque::new(),
            late: Vec::new(),
            registered: Default::default(),
            attached: Default::default(),
            fault,
            messages: 0,
            requests: 0,
            events: 0,
        };
        world.act(CLIENT, first);
        world.settle();
        world
    }

    fn settle(&mut self) {
        loop {
            match self.fault {
                Fault::Vanish(at) if self.events == at => {
                    self.fault = Fault::None;
                    self.queue.retain(|(_, event)| !matches!(event, Event::Clc(_)));
                    self.feed(CLIENT, Event::Vanished);
                    self.feed(SERVER, Event::Vanished);
                }
                Fault::TimeOut(at) if self.events == at => {
                    self.fault = Fault::None;
                    self.feed(CLIENT, Event::Timeout);
                    self.feed(SERVER, Event::Timeout);
                }
                _ => {}
            }
            if let Some((side, event)) = self.queue.pop_front() {
                self.feed(side, event);
            } else if let Some(side) = [CLIENT, SERVER].into_iter().find(|&s| self.ends[s].is_none()) {
                self.feed(side, Event::Timeout);
            } else if let Some((side, event)) = self.late.pop() {
                self.feed(side, event);
            } else {
                return;
            }
        }
    }

    fn feed(&mut self, side: usize, event: Event) {
        self.events += 1;
        assert!(self.events < 100, "no end");
        let input = match &event {
            Event::Clc(bytes) => Input::Clc(bytes),
            Event::Registered(dmb) => Input::Registered(*dmb),
            Event::Attached(dmb) => Input::Attached(*dmb),
            Event::Refused => Input::Refused(Reason::DmbLimit),
            Event::Timeout => Input::Timeout,
            Event::Vanished => Input::PeerVanished,
        };
        let mut out = [0; MAX_LEN];
        let local = self.locals[side];
        let step = match &mut self.machines[side] {
            Machine::Client(client) => client.step(&local, input, &mut out),
            Machine::Server(server) => server.step(&local, input, &mut out),
        };
        self.act(side, step);
    }

    fn act(&mut self, side: usize, step: Step<'_>) {
        if let Some(bytes) = step.send {
            self.send(side, bytes);
        }
        match step.next {
            Next::Wait => {}
            Next::Register => {
                let new = dmb(100 + self.requests as u64);
                let confused = self.fault == Fault::Confuse(self.requests);
                let list = if confused { &mut self.attached } else { &mut self.registered };
                list[side].push(new);
                self.request(side, if confused { Event::Attached(new) } else { Event::Registered(new) });
            }
            Next::Attach(wanted) => {
                let found = self.registered[1 - side].iter().find(|dmb| dmb.token == wanted.token).copied();
                let answer = found.map_or(Event::Refused, |mut dmb| {
                    self.attached[side].push(dmb);
                    if self.fault == Fault::Confuse(self.requests) {
                        dmb.size = DmbSize::KERNEL_MAX;
                    }
                    Event::Attached(dmb)
                });
                self.request(side, answer);
            }
            Next::Open(opened) => self.end(side, End::Open(opened)),
            Next::Fallback(fallback) => {
                self.end(side, End::Fallback(fallback));
                fallback.own.into_iter().for_each(|token| remove(&mut self.registered[side], token));
                fallback.peer.into_iter().for_each(|token| remove(&mut self.attached[side], token));
            }
            Next::Unregister(token) => remove(&mut self.registered[side], token),
            Next::Detach(token) => remove(&mut self.attached[side], token),
        }
    }

    fn send(&mut self, side: usize, bytes: &[u8]) {
        let n = self.messages;
        self.messages += 1;
        let mut bytes = bytes.to_vec();
        match self.fault {
            Fault::Lose(at) if at == n => return,
            Fault::LoseFrom(at) if at <= n => return,
            Fault::Corrupt(at, byte) if at == n => {
                let byte = byte % bytes.len();
                bytes[byte] ^= 0xff;
            }
            Fault::Double(at) if at == n => self.queue.push_back((1 - side, Event::Clc(bytes.clone()))),
            _ => {}
        }
        self.queue.push_back((1 - side, Event::Clc(bytes)));
    }

    fn request(&mut self, side: usize, answer: Event) {
        let n = self.requests;
        self.requests += 1;
        match self.fault {
            Fault::Refuse(at) if at == n => {
                match answer {
                    Event::Registered(dmb) => remove(&mut self.registered[side], dmb.token),
                    Event::Attached(dmb) => remove(&mut self.attached[side], dmb.token),
                    _ => {}
                }
                self.queue.push_back((side, Event::Refused));
            }
            Fault::Dawdle(at) if at == n => self.late.push((side, answer)),
            _ => self.queue.push_back((side, answer)),
        }
    }

    fn end(&mut self, side: usize, end: End) {
        // Open may be followed by a fallback; a fallback by nothing.
        assert!(!matches!(self.ends[side], Some(End::Fallback(_))), "{:?} then {end:?}", self.ends[side]);
        assert!(!(self.ends[side].is_some() && matches!(end, End::Open(_))));
        self.ends[side] = Some(end);
    }

    pub(super) fn reasons(&self) -> [Option<Reason>; 2] {
        self.ends.map(|end| match end {
            Some(End::Fallback(fallback)) => Some(fallback.reason),
            _ => None,
        })
    }

    /// What must hold however it went.
    pub(super) fn check(&self) {
        let [client, server] = [self.ends[CLIENT].unwrap(), self.ends[SERVER].unwrap()];
        let context = format!("{:?}: {client:?} {server:?}", self.fault);
        match (client, server) {
            (End::Open(client), End::Open(server)) => {
                assert_eq!((client.own, client.peer), (server.peer, server.own), "{context}");
                assert_eq!(client.eid, server.eid, "{context}");
            }
            // The Decline was lost: what the client may be writing to is what the server stops.
            (End::Open(client), End::Fallback(server)) => {
                assert_eq!(server.own, Some(client.peer.token), "{context}");
            }
            (End::Fallback(_), End::Open(_)) => panic!("the server stayed open alone: {context}"),
            (End::Fallback(_), End::Fallback(_)) => {}
        }
        for side in [CLIENT, SERVER] {
            let (own, peer) = match self.ends[side].unwrap() {
                End::Open(opened) => (vec![opened.own], vec![opened.peer]),
                End::Fallback(_) => (vec![], vec![]),
            };
            assert_eq!(self.registered[side], own, "{context}: side {side} leaks or lost its DMB");
            assert_eq!(self.attached[side], peer, "{context}: side {side} leaks or lost the peer's DMB");
        }
    }
}

fn remove(held: &mut Vec<NamedDmb>, token: DmbToken) {
    let at = held.iter().position(|dmb| dmb.token == token).expect("let go of what the device does not hold");
    held.remove(at);
}
