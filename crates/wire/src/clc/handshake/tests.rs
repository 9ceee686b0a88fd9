//! Both machines against each other and a device, with one thing going wrong at each place in turn.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::clc::{GidChid, Proposal};

const CLIENT: usize = 0;
const SERVER: usize = 1;

fn host() -> LocalDevice {
    let mut ueids = List::new();
    assert!(ueids.push(Eid::ueid("SHUNPIKE-TEST").unwrap()));
    LocalDevice {
        gid: Gid::new(0x1111, 0x2222),
        chid: Chid::LOOPBACK,
        peer_id: PeerId([0; 8]),
        seid: None,
        ueids,
        hostname: *b"host                            ",
    }
}

fn dmb(token: u64) -> Dmb {
    Dmb { token: DmbToken(token), size: DmbSize::MIN }
}

/// What goes wrong, and at which message or device request, counted from 0.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Fault {
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

enum Event {
    Clc(Vec<u8>),
    Registered(Dmb),
    Attached(Dmb),
    Refused,
    Timeout,
    Vanished,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum End {
    Open(Opened),
    Fallback(Fallback),
}

enum Machine {
    Client(Client),
    Server(Server),
}

/// Two ends, and one device for both.
struct World {
    locals: [LocalDevice; 2],
    machines: [Machine; 2],
    ends: [Option<End>; 2],
    queue: VecDeque<(usize, Event)>,
    late: Vec<(usize, Event)>,
    /// What the device holds for each side.
    registered: [Vec<Dmb>; 2],
    attached: [Vec<Dmb>; 2],
    fault: Fault,
    messages: usize,
    requests: usize,
    events: usize,
}

impl World {
    fn run(locals: [LocalDevice; 2], first_contact: [bool; 2], fault: Fault) -> World {
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

    fn reasons(&self) -> [Option<Reason>; 2] {
        self.ends.map(|end| match end {
            Some(End::Fallback(fallback)) => Some(fallback.reason),
            _ => None,
        })
    }

    /// What must hold however it went.
    fn check(&self) {
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

fn remove(held: &mut Vec<Dmb>, token: DmbToken) {
    let at = held.iter().position(|dmb| dmb.token == token).expect("let go of what the device does not hold");
    held.remove(at);
}

fn run(fault: Fault) -> World {
    let world = World::run([host(); 2], [true; 2], fault);
    world.check();
    world
}

fn run_between(client: LocalDevice, server: LocalDevice) -> World {
    let world = World::run([client, server], [true; 2], Fault::None);
    world.check();
    world
}

#[test]
fn without_faults_both_open_after_three_messages_and_four_requests() {
    for first_contact in [true, false] {
        let world = World::run([host(); 2], [first_contact; 2], Fault::None);
        world.check();
        assert_eq!(world.reasons(), [None, None]);
        assert_eq!((world.messages, world.requests), (3, 4));
    }
}

#[test]
fn any_lost_message_ends_on_tcp() {
    for n in 0..3 {
        let world = run(Fault::Lose(n));
        let [_, server] = world.reasons();
        assert!(server.is_some(), "message {n}");
    }
    assert_eq!(run(Fault::Lose(0)).reasons()[CLIENT], Some(Reason::ConfirmTimeout));
    // The client opened on its Confirm, and the server's Decline takes it back.
    let world = run(Fault::Lose(2));
    assert_eq!(world.reasons(), [Some(Reason::PeerDeclined), Some(Reason::ConfirmTimeout)]);
}

#[test]
fn a_broker_that_dies_leaves_at_most_an_open_client_that_the_server_stops() {
    for n in 0..4 {
        let world = run(Fault::LoseFrom(n));
        let alone = matches!(world.ends, [Some(End::Open(_)), Some(End::Fallback(_))]);
        assert_eq!(alone, n == 2, "from message {n}");
    }
}

#[test]
fn a_refusing_device_ends_on_tcp_on_both_sides() {
    // 0 server registers, 1 client attaches, 2 client registers, 3 server attaches.
    for n in 0..4 {
        let reasons = run(Fault::Refuse(n)).reasons();
        let by_server = n == 0 || n == 3;
        let (own, told) = (Some(Reason::DmbLimit), Some(Reason::PeerDeclined));
        assert_eq!(reasons, if by_server { [told, own] } else { [own, told] }, "request {n}");
    }
}

#[test]
fn a_declines_number_reaches_the_peer() {
    let world = run(Fault::Refuse(3));
    let Some(End::Fallback(fallback)) = world.ends[CLIENT] else { panic!("open") };
    assert_eq!(fallback.peer_diagnosis, Reason::DmbLimit.code());
}

#[test]
fn a_slow_or_confused_device_ends_on_tcp_and_leaks_nothing() {
    for n in 0..4 {
        for fault in [Fault::Dawdle(n), Fault::Confuse(n)] {
            let reasons = run(fault).reasons();
            assert!(reasons.iter().all(Option::is_some), "{fault:?} {reasons:?}");
        }
        // The client, which waits for the server's Accept all the while, gives up first.
        let first = if n == 0 { Reason::ConfirmTimeout } else { Reason::HandshakeTimeout };
        assert!(run(Fault::Dawdle(n)).reasons().contains(&Some(first)));
    }
}

#[test]
fn vanishing_and_timeouts_at_every_point_leak_nothing() {
    let whole = run(Fault::None).events;
    for n in 0..=whole {
        run(Fault::Vanish(n));
        run(Fault::TimeOut(n));
    }
}

#[test]
fn any_doubled_message_ends_alike_on_both_sides() {
    for n in 0..3 {
        let reasons = run(Fault::Double(n)).reasons();
        assert!(reasons.contains(&Some(Reason::Sync)), "message {n}: {reasons:?}");
        assert!(reasons.iter().all(Option::is_some));
    }
}

#[test]
fn any_corrupt_byte_is_survived() {
    for n in 0..3 {
        for byte in 0..MAX_LEN {
            run(Fault::Corrupt(n, byte));
        }
    }
}

#[test]
fn the_peers_refusal_names_the_reason() {
    let mut no_eid = host();
    no_eid.ueids = List::new();
    let mut other_eid = host();
    other_eid.ueids = List::new();
    assert!(other_eid.ueids.push(Eid::ueid("OTHER").unwrap()));
    let mut other_gid = host();
    other_gid.gid = Gid::new(3, 4);
    let mut other_chid = host();
    other_chid.chid = Chid(0xFF00);
    let cases = [
        (no_eid, Reason::NoUeid),
        (other_eid, Reason::NoUeid),
        (other_gid, Reason::GidUnreachable),
        (other_chid, Reason::NoSmcDV2Device),
    ];
    for (client, reason) in cases {
        let world = run_between(client, host());
        assert_eq!(world.reasons(), [Some(Reason::PeerDeclined), Some(reason)]);
        assert_eq!(world.requests, 0, "nothing was registered in vain");
    }
}

#[test]
fn the_first_common_ueid_of_the_clients_list_is_chosen() {
    let [a, b, c] = ["A", "B", "C"].map(|text| Eid::ueid(text).unwrap());
    let (mut client, mut server) = (host(), host());
    (client.ueids, server.ueids) = (List::new(), List::new());
    for eid in [c, b, a] {
        assert!(client.ueids.push(eid));
    }
    for eid in [a, b] {
        assert!(server.ueids.push(eid));
    }
    let world = run_between(client, server);
    let Some(End::Open(opened)) = world.ends[CLIENT] else { panic!("not open") };
    assert_eq!(opened.eid, b);
}

#[test]
fn an_equal_seid_goes_before_ueids_and_a_zero_one_counts_for_nothing() {
    let seid = Seid(Eid(*b"IBM-SYSZ-ISMSEID0000000012345678"));
    let enabled = |seid| LocalDevice { seid: Some(seid), ..host() };
    let eid = |world: World| match world.ends[CLIENT] {
        Some(End::Open(opened)) => opened.eid,
        other => panic!("{other:?}"),
    };
    let ueid = Eid::ueid("SHUNPIKE-TEST").unwrap();
    assert_eq!(eid(run_between(enabled(seid), enabled(seid))), seid.0);
    assert_eq!(eid(run_between(enabled(seid), host())), ueid);
    assert_eq!(eid(run_between(enabled(Seid::NONE), enabled(Seid::NONE))), ueid);
}

#[test]
fn a_link_group_that_only_the_server_knows_is_out_of_sync() {
    let world = World::run([host(); 2], [true, false], Fault::None);
    world.check();
    assert_eq!(world.reasons(), [Some(Reason::Sync), Some(Reason::PeerDeclined)]);
    // The other way round the server introduces itself once more, and nothing is lost.
    let world = World::run([host(); 2], [false, true], Fault::None);
    world.check();
    assert_eq!(world.reasons(), [None, None]);
}

/// The server's answer to a proposal that this changes.
fn answer_to(change: impl FnOnce(&mut Proposal)) -> Reason {
    let mut out = [0; MAX_LEN];
    let (_, first) = Client::start(&host(), true, 1, &mut out);
    let Ok(Message::Proposal(mut proposal)) = Message::decode(first.send.unwrap()) else { panic!() };
    change(&mut proposal);
    let mut bytes = [0; MAX_LEN];
    let len = Message::Proposal(proposal).encode(&mut bytes).unwrap();
    let step = Server::new(true, 2).step(&host(), Input::Clc(&bytes[..len]), &mut out);
    match step.next {
        Next::Fallback(fallback) => fallback.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn proposals_that_lack_something_are_declined_with_what_they_lack() {
    use crate::clc::{Paths, Version};
    assert_eq!(
        answer_to(|p| {
            p.version = Version::V1;
            p.smcd.as_mut().unwrap().v2 = None;
        }),
        Reason::VersionMismatch
    );
    assert_eq!(
        answer_to(|p| {
            p.v2 = Paths::SmcR;
            p.smcd.as_mut().unwrap().v2.as_mut().unwrap().smcd = None;
        }),
        Reason::NoSmcD
    );
    assert_eq!(answer_to(|p| p.smcd.as_mut().unwrap().v2 = None), Reason::NoV2Extension);
    assert_eq!(
        answer_to(|p| p.smcd.as_mut().unwrap().v2.as_mut().unwrap().smcd = None),
        Reason::NoSmcDV2Extension
    );
    // Half of an emulated device is none.
    assert_eq!(
        answer_to(|p| {
            let smcd = p.smcd.as_mut().unwrap().v2.as_mut().unwrap().smcd.as_mut().unwrap();
            smcd.gids = List::new();
            assert!(smcd.gids.push(GidChid { gid: 0x1111, chid: Chid::LOOPBACK }));
        }),
        Reason::NoSmcDV2Device
    );
}

#[test]
fn the_broker_announces_what_the_handshake_needs() {
    let mut ueids = [[0; 32]; 8];
    ueids[0] = Eid::ueid("ONE").unwrap().0;
    let welcome = Welcome {
        version: 1,
        peer_id: [9; 8],
        gid: Gid::new(5, 6).0,
        chid: 0xFFFF,
        seid_enabled: false,
        seid: [7; 32],
        ueid_count: 1,
        ueids,
    };
    let local = LocalDevice::new(&welcome, b"a-name-of-more-than-thirty-two-characters");
    assert_eq!((local.gid, local.chid, local.seid), (Gid::new(5, 6), Chid::LOOPBACK, None));
    assert_eq!(local.ueids.iter().collect::<Vec<_>>(), [Eid::ueid("ONE").unwrap()]);
    assert_eq!(&local.hostname, b"a-name-of-more-than-thirty-two-c");
}

/// Inputs in any order: messages that fit some state, scraps, and answers that nobody asked for.
fn any_input() -> impl Strategy<Value = (u8, u64)> {
    (0u8..9, 0u64..4)
}

proptest! {
    #[test]
    fn any_order_of_inputs_is_survived_and_leaks_nothing(inputs in prop::collection::vec(any_input(), 0..12), is_client: bool) {
        let local = host();
        let mut out = [0; MAX_LEN];
        let mut machine = if is_client {
            Machine::Client(Client::start(&local, true, 1, &mut out).0)
        } else {
            Machine::Server(Server::new(true, 1))
        };
        let mut given = Vec::new();
        let mut taken = Vec::new();
        let mut end = None;
        for (n, (what, token)) in inputs.into_iter().enumerate() {
            let size = DmbSize::MIN;
            let answer = local.answer(dmb(token), 3, local.ueids.at(0).unwrap(), Some(Agreed::with(1, 1)));
            let message = match what {
                0 => Message::decode(Client::start(&local, true, 1, &mut out).1.send.unwrap()).unwrap(),
                1 => Message::Accept(answer),
                2 => Message::Confirm(answer),
                _ => Message::Decline(Decline::new(local.peer_id, Reason::NoDevice)),
            };
            let mut bytes = [0; MAX_LEN];
            let len = message.encode(&mut bytes).unwrap();
            let (own, peer) = (DmbToken(1000 + n as u64), DmbToken(token));
            let input = match what {
                0..=3 => Input::Clc(&bytes[..len]),
                4 => Input::Clc(&bytes[..len / 2]),
                5 => Input::Registered(Dmb { token: own, size }),
                6 => Input::Attached(Dmb { token: peer, size }),
                7 => Input::Refused(Reason::DmbLimit),
                _ => Input::Timeout,
            };
            match what {
                5 => given.push(own),
                6 => given.push(peer),
                _ => {}
            }
            let step = match &mut machine {
                Machine::Client(client) => client.step(&local, input, &mut out),
                Machine::Server(server) => server.step(&local, input, &mut out),
            };
            match step.next {
                Next::Unregister(token) | Next::Detach(token) => taken.push(token),
                Next::Fallback(fallback) => {
                    prop_assert!(!matches!(end, Some(Next::Fallback(_))));
                    taken.extend(fallback.own);
                    taken.extend(fallback.peer);
                    end = Some(step.next);
                }
                Next::Open(_) => {
                    prop_assert!(end.is_none());
                    end = Some(step.next);
                }
                Next::Register | Next::Attach(_) => prop_assert!(end.is_none()),
                Next::Wait => {}
            }
        }
        given.sort_by_key(|token| token.0);
        taken.sort_by_key(|token| token.0);
        if let Some(Next::Fallback(_)) = end {
            prop_assert_eq!(given, taken);
        }
    }
}
