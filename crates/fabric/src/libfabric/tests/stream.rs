//! A stream over a link group between two network namespaces, whose links are cut at random: each word once, in order.

use super::{enter, is_missing, namespace, open, two_hosts};
use crate::carrier::{Carrier, Pace, Rings};
use crate::engine::Engine;
use crate::group::{Group, Role, Settings};
use crate::memory::Memory;
use crate::words::{Llc, Slot};
use rustix::fd::OwnedFd;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a ring.
const RING: usize = 1 << 20;
/// Most bytes that a program writes or reads at once.
const PIECE: usize = 64 << 10;
/// Bytes from one cut to the next, about.
const CUT_EVERY: u64 = 8 << 20;
/// Bytes a second, at the least: others have this machine, too.
const SLOWEST: u64 = 1 << 20;

/// Word `at` of the stream.
fn word(at: u64) -> u64 {
    let z = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// One host: its engine, its end of the group, and the brokers' connection.
struct Host {
    engine: super::Libfabric,
    carrier: Carrier,
    rings: Rings,
    slot: Slot,
    say: Sender<Llc>,
    hear: Receiver<Llc>,
    began: Instant,
    patience: Duration,
    turns: u32,
}

impl Host {
    fn new(
        host: &OwnedFd,
        address: &str,
        listens: bool,
        say: Sender<Llc>,
        hear: Receiver<Llc>,
        total: u64,
    ) -> Self {
        enter(host);
        let mut engine = open(address);
        let at = SocketAddr::new(address.parse().unwrap(), 0);
        let role = if listens { Role::Server(engine.listen(at).unwrap()) } else { Role::Client };
        let queue = engine.open_queue(0).unwrap();
        // Others have this machine, too.
        let settings = Settings { answer_within: 30_000, patience: 60_000, ..Settings::default() };
        let group = Group::new(role, settings, 0);
        let pace = Pace { chunk: 32 << 10, under_way: 128 << 10 };
        let mut carrier = Carrier::new(&mut engine, queue, group, pace).unwrap();
        let memory = || Memory::new(4096 + RING).unwrap();
        let rings = Rings { sends: memory(), receives: memory(), offset: 4096, size: RING as u32 };
        let slot = carrier.free_slot().unwrap();
        carrier.open(&mut engine, slot, rings.clone()).unwrap();
        let (began, patience) = (Instant::now(), Duration::from_secs(60 + total / SLOWEST));
        Self { engine, carrier, rings, slot, say, hear, began, patience, turns: 0 }
    }

    /// Says whether the other end is gone.
    fn turn(&mut self) -> bool {
        assert!(self.began.elapsed() < self.patience, "not within {:?}", self.patience);
        self.carrier.turn(&mut self.engine).unwrap();
        self.turns += 1;
        if self.turns.is_multiple_of(64) {
            self.carrier.tick(&mut self.engine, self.began.elapsed().as_millis() as u64);
        }
        let is_gone = loop {
            match self.hear.try_recv() {
                Ok(llc) => self.carrier.said(&mut self.engine, llc),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        while let Some(llc) = self.carrier.says() {
            // The other end may be done.
            let _ = self.say.send(llc);
        }
        assert!(is_gone || !self.carrier.group().has_ended(), "the group has ended");
        is_gone
    }

    /// Cuts a link as a death would: its endpoint is gone, and nobody was told.
    fn cut(&mut self, link: u8) {
        if let Some(endpoint) = self.carrier.endpoint(link) {
            self.engine.close(endpoint);
        }
    }

    fn send(mut self, total: u64) -> u64 {
        let (mut sent, mut cuts, mut next) = (0, 0, CUT_EVERY);
        while sent < total {
            let (room, at) = self.carrier.room(self.slot).unwrap();
            let n = (room as usize).min(RING - at).min(PIECE).min((total - sent) as usize) & !7;
            let bytes: Vec<u8> = (0..n as u64 / 8).flat_map(|i| word(sent / 8 + i).to_ne_bytes()).collect();
            self.rings.sends.write(4096 + at, &bytes);
            self.carrier.produce(self.slot, n as u64);
            sent += n as u64;
            self.turn();
            if sent >= next {
                let random = word(next ^ 0x5eed);
                self.cut((random & 1) as u8);
                next = sent + CUT_EVERY / 2 + random % CUT_EVERY;
                cuts += 1;
            }
        }
        // The receiver says a word when it has all.
        while self.carrier.unread(self.slot).unwrap().0 == 0 {
            self.turn();
        }
        cuts
    }

    fn receive(mut self, total: u64) {
        let (mut read, mut next) = (0, CUT_EVERY * 3);
        while read < total {
            self.turn();
            let (unread, at) = self.carrier.unread(self.slot).unwrap();
            let n = (unread as usize).min(RING - at).min(PIECE) & !7;
            let mut bytes = vec![0; n];
            self.rings.receives.read(4096 + at, &mut bytes);
            for (at, said) in (read / 8..).zip(bytes.chunks_exact(8)) {
                assert_eq!(u64::from_ne_bytes(said.try_into().unwrap()), word(at), "word {at}");
            }
            self.carrier.consume(self.slot, n as u64);
            read += n as u64;
            // This end's adapter dies, too.
            if read >= next {
                self.cut((word(read) & 1) as u8);
                next = read + CUT_EVERY * 3;
            }
        }
        self.carrier.produce(self.slot, 8);
        // The other end has it when it is gone. A link may be cut meanwhile: the two go on talking.
        while !self.turn() {}
    }
}

/// FABRIC_BYTES=1000000000 for as many, by hand.
#[test]
fn a_stream_between_two_network_namespaces_survives_cuts() {
    if is_missing() {
        return;
    }
    let own = namespace();
    let [first, second] = match two_hosts() {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let total = std::env::var("FABRIC_BYTES").map_or(96 << 20, |bytes| bytes.parse().expect("a number")) & !7;
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    let began = Instant::now();
    let receiver = thread::spawn(move || {
        Host::new(&second, "10.198.0.2", true, to_first, from_first, total).receive(total);
    });
    let sender = thread::spawn(move || {
        Host::new(&first, "10.198.0.1", false, to_second, from_second, total).send(total)
    });
    let cuts = sender.join().expect("the sender");
    receiver.join().expect("the receiver");
    enter(&own);
    eprintln!("{total} bytes in {:?}, {cuts} links cut by the sender", began.elapsed());
    assert!(cuts >= total / CUT_EVERY / 2, "only {cuts} cuts");
}
