use super::*;
use crate::fake::{Fake, Faults, Net};
use crate::group::{Role, Settings};
use proptest::prelude::*;
use std::net::SocketAddr;

/// Bytes of a ring, behind a page that is not the ring's.
const RING: usize = 4096;
const OFFSET: usize = 4096;
/// Steps that a test may take before it counts as stuck.
const STUCK: u64 = 3_000_000;

/// Both ends of a link group, and the brokers' connection between them.
struct Pair {
    net: Net,
    engines: [Fake; 2],
    carriers: [Carrier; 2],
    /// To each end: with the step before which it does not come.
    said: [VecDeque<(u64, Llc)>; 2],
    steps: u64,
    /// Steps that a message between the brokers takes.
    delay: u64,
}

impl Pair {
    fn new(seed: u64, faults: Faults, settings: Settings) -> Self {
        let net = Net::new(seed, faults);
        let mut engines = [net.engine(), net.engine()];
        let at: SocketAddr = engines[1].listen("10.0.0.2:0".parse().unwrap()).unwrap();
        let roles = [Role::Client, Role::Server(at)];
        let pace = Pace { chunk: 700, under_way: 2100 };
        let [a, b] = &mut engines;
        let carriers = [(a, roles[0]), (b, roles[1])].map(|(engine, role)| {
            let queue = engine.open_queue(0).unwrap();
            Carrier::new(engine, queue, Group::new(role, settings, 0), pace).unwrap()
        });
        Self { net, engines, carriers, said: Default::default(), steps: 0, delay: 1 + seed % 40 }
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < STUCK, "it is stuck");
        for side in [0, 1] {
            let (carrier, engine) = (&mut self.carriers[side], &mut self.engines[side]);
            carrier.turn(engine).unwrap();
            if self.steps.is_multiple_of(16) {
                carrier.tick(engine, self.steps / 16);
            }
            while self.said[side].front().is_some_and(|(due, _)| *due <= self.steps) {
                let (_, llc) = self.said[side].pop_front().unwrap();
                carrier.said(engine, llc);
            }
            while let Some(llc) = carrier.says() {
                self.said[1 - side].push_back((self.steps + self.delay, llc));
            }
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(!self.has_ended(), "{what}: the group has ended");
            self.step();
        }
    }

    fn has_ended(&self) -> bool {
        self.carriers.iter().any(|carrier| carrier.group().has_ended())
    }

    fn open(&mut self, slot: Slot) -> [Rings; 2] {
        let memory = || Memory::new(OFFSET + RING).unwrap();
        [0, 1].map(|side| {
            let rings = Rings { sends: memory(), receives: memory(), offset: OFFSET, size: RING as u32 };
            self.carriers[side].open(&mut self.engines[side], slot, rings.clone()).unwrap();
            rings
        })
    }

    fn are_up(&self, links: &[u8]) -> bool {
        let up = |carrier: &Carrier| links.iter().all(|link| carrier.group().link(*link).is_usable());
        self.carriers.iter().all(up)
    }
}

/// Byte `at` of a stream.
fn byte(stream: usize, at: u64) -> u8 {
    let mut z = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (stream as u64) << 56;
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 32) as u8
}

/// A connection with a program at each end, which send and check a stream each.
struct Programs {
    slot: Slot,
    rings: [Rings; 2],
    sent: [u64; 2],
    read: [u64; 2],
}

impl Programs {
    fn new(pair: &mut Pair, number: u8) -> Self {
        let slot = Slot::new(number).unwrap();
        Self { slot, rings: pair.open(slot), sent: [0; 2], read: [0; 2] }
    }

    fn step(&mut self, pair: &mut Pair, total: u64, most: u64) {
        for side in [0, 1] {
            let stream = 2 * usize::from(self.slot.number()) + side;
            let carrier = &mut pair.carriers[side];
            let (room, at) = carrier.room(self.slot).unwrap();
            let n = room.min(total - self.sent[side]).min(most).min((RING - at) as u64);
            let bytes: Vec<u8> = (self.sent[side]..self.sent[side] + n).map(|at| byte(stream, at)).collect();
            self.rings[side].sends.write(OFFSET + at, &bytes);
            carrier.produce(self.slot, n);
            self.sent[side] += n;

            let stream = 2 * usize::from(self.slot.number()) + 1 - side;
            let (unread, at) = carrier.unread(self.slot).unwrap();
            let n = unread.min(most).min((RING - at) as u64);
            let mut bytes = vec![0; n as usize];
            self.rings[side].receives.read(OFFSET + at, &mut bytes);
            for (at, said) in (self.read[side]..).zip(bytes) {
                assert_eq!(said, byte(stream, at), "byte {at} of stream {stream}");
            }
            carrier.consume(self.slot, n);
            self.read[side] += n;
        }
    }
}

/// Streams over a group whose links are cut: each byte once, in order. Says how often links came and went.
fn streams(seed: u64, faults: Faults, settings: Settings, connections: u8, total: u64) -> u32 {
    let mut pair = Pair::new(seed, faults, settings);
    let mut programs: Vec<Programs> =
        (1..=connections).map(|number| Programs::new(&mut pair, number)).collect();
    let (mut cuts, mut was_up) = (0, false);
    while programs.iter().any(|one| one.read != [total; 2]) {
        if pair.steps == 100_000 {
            pair.net.calm();
        }
        pair.step();
        assert!(!pair.has_ended(), "the group has ended at step {}", pair.steps);
        let is_up = pair.are_up(&[0]);
        cuts += u32::from(was_up && !is_up);
        was_up = is_up;
        for one in &mut programs {
            let most = 1 + (pair.steps * 7 + seed) % 900;
            one.step(&mut pair, total, most);
        }
    }
    // What a page beside the ring has is not touched.
    for rings in programs.iter().flat_map(|one| &one.rings) {
        let mut page = vec![0; OFFSET];
        rings.receives.read(0, &mut page);
        assert!(page.iter().all(|byte| *byte == 0));
    }
    pair.net.calm();
    for side in [0, 1] {
        for one in &programs {
            pair.carriers[side].close(&mut pair.engines[side], one.slot);
        }
    }
    pair.until("rings come back", |pair| pair.carriers.iter().all(|one| one.group().connections() == 0));
    for carrier in &mut pair.carriers {
        let mut released: Vec<Slot> = std::iter::from_fn(|| carrier.released()).collect();
        released.sort_unstable();
        assert!(released.iter().map(|slot| slot.number()).eq(1..=connections), "{released:?}");
    }
    assert_eq!(pair.net.strays(), 0, "a late write");
    cuts
}

#[test]
fn a_stream_goes_over_two_links() {
    for early in [false, true] {
        streams(5, Faults { delay: 3, early, ..Faults::NONE }, Settings::default(), 2, 50_000);
    }
}

#[test]
fn links_that_are_cut_again_and_again_lose_nothing() {
    let faults = Faults { delay: 4, cut: 300, lose_completions: true, early: true };
    let cuts: u32 = (0..12).map(|seed| streams(seed, faults, Settings::default(), 2, 60_000)).sum();
    assert!(cuts > 20, "only {cuts} cuts of the first link");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_is_lost_or_comes_twice_or_out_of_order(
        seed: u64,
        delay in 1_u64..30,
        cut in prop_oneof![Just(0_u64), 60_u64..900],
        lose_completions: bool,
        early: bool,
        links in 1_usize..=2,
        connections in 1_u8..5,
        total in 1_u64..30_000,
    ) {
        let settings = Settings { links, ..Settings::default() };
        streams(seed, Faults { delay, cut, lose_completions, early }, settings, connections, total);
    }
}

#[test]
fn connections_spread_over_both_links_and_move_when_one_is_lost() {
    let mut pair = Pair::new(1, Faults::NONE, Settings::default());
    pair.until("both links", |pair| pair.are_up(&[0, 1]));
    let mut programs: Vec<Programs> = (1..=4).map(|number| Programs::new(&mut pair, number)).collect();
    let links = |pair: &Pair| {
        let of =
            |side: usize| pair.carriers[side].connections.values().map(|one| one.link).collect::<Vec<_>>();
        [of(0), of(1)]
    };
    assert_eq!(links(&pair)[0], [Some(0), Some(1), Some(0), Some(1)]);
    let endpoint = pair.carriers[0].endpoint(1).unwrap();
    pair.net.cut(endpoint);
    pair.until("the loss", |pair| !pair.are_up(&[1]));
    pair.until("the move", |pair| links(pair).iter().all(|one| one.iter().all(Option::is_some)));
    for _ in 0..200 {
        pair.step();
        programs.iter_mut().for_each(|one| one.step(&mut pair, 1000, 100));
    }
    pair.until("the link again", |pair| pair.are_up(&[0, 1]));
}

#[test]
fn a_group_whose_brokers_lose_each_other_ends_and_frees_its_rings() {
    let mut pair = Pair::new(1, Faults::NONE, Settings::default());
    pair.until("both links", |pair| pair.are_up(&[0, 1]));
    let mut programs = Programs::new(&mut pair, 7);
    for _ in 0..50 {
        pair.step();
        programs.step(&mut pair, 1 << 30, 500);
    }
    let [carrier, _] = &mut pair.carriers;
    carrier.control_lost(&mut pair.engines[0]);
    assert!(carrier.group().has_ended() && carrier.released() == Some(programs.slot));
    assert!(carrier.endpoint(0).is_none() && carrier.endpoint(1).is_none());
    let mut before = vec![0; RING];
    programs.rings[0].receives.read(OFFSET, &mut before);
    // The peer goes on for a while, as it does not know yet.
    for _ in 0..50 {
        pair.carriers[1].turn(&mut pair.engines[1]).unwrap();
    }
    let mut after = vec![0; RING];
    programs.rings[0].receives.read(OFFSET, &mut after);
    assert!(before == after, "a late write");
}

#[test]
fn a_peer_that_does_not_answer_in_time_ends_the_group() {
    let mut pair = Pair::new(1, Faults::NONE, Settings::default());
    pair.until("both links", |pair| pair.are_up(&[0, 1]));
    let endpoint = pair.carriers[0].endpoint(0).unwrap();
    pair.net.cut(endpoint);
    let [carrier, _] = &mut pair.carriers;
    while !carrier.group().has_ended() {
        pair.steps += 1;
        assert!(pair.steps < STUCK);
        carrier.turn(&mut pair.engines[0]).unwrap();
        carrier.tick(&mut pair.engines[0], pair.steps);
    }
}

#[test]
fn a_silent_link_is_tested_and_stays_if_it_answers() {
    let settings = Settings { test_after: 50, answer_within: 1000, ..Settings::default() };
    let mut pair = Pair::new(1, Faults::NONE, settings);
    pair.until("both links", |pair| pair.are_up(&[0, 1]));
    let endpoints = [0, 1].map(|link| pair.carriers[0].endpoint(link));
    let before = pair.carriers[0].posted.words;
    for _ in 0..10_000 {
        pair.step();
        assert!(pair.are_up(&[0, 1]));
    }
    assert_eq!(endpoints, [0, 1].map(|link| pair.carriers[0].endpoint(link)));
    assert!(pair.carriers[0].posted.words > before + 4, "it was tested");
}

#[test]
fn a_slot_is_used_again_and_again_while_links_are_cut() {
    let faults = Faults { delay: 3, cut: 200, lose_completions: true, early: true };
    let mut pair = Pair::new(9, faults, Settings::default());
    for round in 0..150 {
        pair.until("a slot", |pair| {
            pair.carriers.iter().all(|one| one.free_slot().is_some_and(|slot| slot.number() == 1))
        });
        let mut programs = Programs::new(&mut pair, 1);
        // Some are over before all has come, some before anything has.
        for _ in 0..round * 3 {
            pair.step();
            programs.step(&mut pair, 5000, 600);
        }
        for side in [round % 2, 1 - round % 2] {
            pair.carriers[side].close(&mut pair.engines[side], programs.slot);
        }
        pair.until("an end", |pair| pair.carriers.iter().all(|one| one.group().connections() == 0));
    }
    assert_eq!(pair.net.strays(), 0, "a late write");
}
