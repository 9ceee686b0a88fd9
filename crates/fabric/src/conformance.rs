//! What every engine must do: the rules of [`engine`](crate::engine), one by one.

use crate::engine::{
    Completion, Endpoint, Engine, EngineError, Event, MAX_HELLO, Queue, RToken, Registered, Request, Source,
    Target,
};
use crate::memory::Memory;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Two engines that reach each other.
pub struct Fixture<'a, E> {
    /// Makes both.
    pub make: &'a dyn Fn() -> [E; 2],
    /// Where the second may listen, port 0.
    pub at: SocketAddr,
}

/// Two ends that have to come to terms, at the most.
const PATIENCE: Duration = Duration::from_secs(20);
const LEN: usize = 1 << 16;

/// Runs the whole suite; panics at the first thing that does not conform.
pub fn run<E: Engine>(fixture: &Fixture<'_, E>) {
    both_ends_are_told_of_a_connection(fixture);
    who_is_refused_is_told(fixture);
    nobody_listens(fixture);
    writes_land_in_order_before_they_are_told(fixture);
    completions_come_in_order(fixture);
    what_is_wrong_is_refused(fixture);
    an_end_that_closes_is_lost_to_the_other(fixture);
    nothing_lands_in_memory_that_was_taken_back(fixture);
    nothing_lands_through_an_endpoint_that_was_closed(fixture);
    many_endpoints_share_a_queue(fixture);
    a_wait_ends_when_there_is_news(fixture);
}

/// An engine with what a test has of it.
struct Side<E> {
    engine: E,
    queue: Queue,
    memory: Memory,
    registered: Registered,
    token: RToken,
    news: Vec<Completion>,
    events: Vec<Event>,
}

impl<E: Engine> Side<E> {
    fn new(mut engine: E) -> Self {
        let queue = engine.open_queue(0).expect("a queue");
        let memory = Memory::new(LEN).expect("memory");
        let (registered, token) = engine.register(&memory).expect("registered");
        Self { engine, queue, memory, registered, token, news: Vec::new(), events: Vec::new() }
    }

    fn turn(&mut self) {
        self.engine.poll(self.queue, &mut self.news).expect("a queue");
        self.events.extend(std::iter::from_fn(|| self.engine.event()));
    }

    fn write(
        &mut self,
        endpoint: Endpoint,
        from: usize,
        len: usize,
        token: RToken,
        data: u32,
    ) -> Result<(), EngineError> {
        let source = Source { memory: self.registered, offset: from, len };
        self.engine.write(endpoint, source, Target { token, offset: from as u64 }, data, data)
    }

    fn immediates(&self) -> Vec<u32> {
        let data = |news: &Completion| match news {
            Completion::Immediate { data, .. } => Some(*data),
            Completion::Written { .. } => None,
        };
        self.news.iter().filter_map(data).collect()
    }

    fn completed(&self) -> Vec<u32> {
        let done = |news: &Completion| match news {
            Completion::Written { context, done: true, .. } => Some(*context),
            _ => None,
        };
        self.news.iter().filter_map(done).collect()
    }

    fn requested(&self) -> Option<(Request, Vec<u8>)> {
        self.events.iter().find_map(|event| match event {
            Event::Requested { request, hello } => Some((*request, hello.clone())),
            _ => None,
        })
    }

    fn is_connected(&self, which: Endpoint) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, Event::Connected { endpoint, .. } if *endpoint == which))
    }

    fn times_lost(&self, which: Endpoint) -> usize {
        self.events.iter().filter(|event| **event == Event::Lost { endpoint: which }).count()
    }
}

/// Lets both go on until `done`.
fn until<E: Engine>(what: &str, sides: &mut [Side<E>; 2], mut done: impl FnMut(&mut [Side<E>; 2]) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        sides.iter_mut().for_each(Side::turn);
        if done(sides) {
            return;
        }
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
    }
}

fn sides<E: Engine>(fixture: &Fixture<'_, E>) -> ([Side<E>; 2], SocketAddr) {
    let mut sides = (fixture.make)().map(Side::new);
    let at = sides[1].engine.listen(fixture.at).expect("it listens");
    assert_ne!(at.port(), 0);
    (sides, at)
}

/// Connects the first side to the second.
fn connect<E: Engine>(sides: &mut [Side<E>; 2], at: SocketAddr) -> [Endpoint; 2] {
    let [client, _] = sides;
    let first = client.engine.connect(at, client.queue, b"from the client").expect("it begins");
    let mut second = None;
    until("a connection", sides, |[client, server]| {
        if let Some((request, hello)) = server.requested() {
            assert_eq!(hello, b"from the client");
            let accepted = server.engine.accept(request, server.queue, b"from the server");
            second = Some(accepted.expect("accepted"));
            server.events.clear();
        }
        client.is_connected(first) && second.is_some_and(|second| server.is_connected(second))
    });
    [first, second.expect("it is there")]
}

fn both_ends_are_told_of_a_connection<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let [first, second] = connect(&mut sides, at);
    let hello = |side: &Side<E>, which| {
        side.events.iter().find_map(|event| match event {
            Event::Connected { endpoint, hello } if *endpoint == which => Some(hello.clone()),
            _ => None,
        })
    };
    assert_eq!(hello(&sides[0], first).expect("told"), b"from the server");
    assert_eq!(hello(&sides[1], second).expect("told"), b"");
    let long = [0; MAX_HELLO + 1];
    assert_eq!(sides[0].engine.connect(at, sides[0].queue, &long), Err(EngineError::Hello));
    let unknown = Queue(99);
    assert_eq!(sides[0].engine.connect(at, unknown, b""), Err(EngineError::Unknown));
}

fn who_is_refused_is_told<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let first = sides[0].engine.connect(at, sides[0].queue, b"").expect("it begins");
    until("a refusal", &mut sides, |[client, server]| {
        if let Some((request, _)) = server.requested() {
            server.events.clear();
            server.engine.refuse(request).expect("refused");
            assert_eq!(server.engine.refuse(request), Err(EngineError::Unknown));
        }
        client.times_lost(first) == 1
    });
    assert!(!sides[0].is_connected(first));
}

fn nobody_listens<E: Engine>(fixture: &Fixture<'_, E>) {
    let mut sides = (fixture.make)().map(Side::new);
    // A port of nobody's: the discard service's.
    let at = SocketAddr::new(fixture.at.ip(), 9);
    let Ok(first) = sides[0].engine.connect(at, sides[0].queue, b"") else { return };
    until("nobody's answer", &mut sides, |[client, _]| client.times_lost(first) == 1);
}

fn writes_land_in_order_before_they_are_told<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let ends = connect(&mut sides, at);
    let token = sides[1].token;
    let count = 300;
    let mut posted = 0;
    until("all writes", &mut sides, |[client, server]| {
        while posted < count {
            client.memory.write(posted as usize, &[posted as u8]);
            match client.write(ends[0], posted as usize, 1, token, posted) {
                Ok(()) => posted += 1,
                Err(EngineError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        for told in server.immediates() {
            let mut byte = [0];
            server.memory.read(told as usize, &mut byte);
            assert_eq!(byte[0], told as u8, "told before it has landed");
        }
        server.immediates().len() == count as usize
    });
    let told = sides[1].immediates();
    assert!(told.iter().copied().eq(0..count), "each once, in order: {told:?}");
    until("all completions", &mut sides, |[client, _]| client.completed().len() == count as usize);
    // The other way through the same endpoints, and a large one.
    let token = sides[0].token;
    sides[1].memory.write(5000, &[7; 50000]);
    sides[1].write(ends[1], 5000, 50000, token, u32::MAX).expect("room");
    until("the way back", &mut sides, |[client, _]| client.immediates() == [u32::MAX]);
    let mut bytes = vec![0; 50002];
    sides[0].memory.read(4999, &mut bytes);
    assert!(bytes[1..50001].iter().all(|byte| *byte == 7) && bytes[0] == 0 && bytes[50001] == 0);
}

fn completions_come_in_order<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let ends = connect(&mut sides, at);
    let (token, most) = (sides[1].token, sides[0].engine.limits().writes);
    assert!(most >= 2 && sides[0].engine.limits().vectors >= 1 && sides[0].engine.limits().write >= 1 << 20);
    let mut posted = 0;
    let full = loop {
        match sides[0].write(ends[0], 0, 4096, token, posted) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        // An engine may take them as fast as they come, if it says of none before it is polled.
        if posted as usize > 2 * most {
            break EngineError::Full;
        }
    };
    assert_eq!(full, EngineError::Full);
    until("completions", &mut sides, |[client, _]| client.completed().len() == posted as usize);
    assert!(sides[0].completed().into_iter().eq(0..posted));
    sides[0].write(ends[0], 0, 1, token, 9).expect("there is room again");
}

fn what_is_wrong_is_refused<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let ends = connect(&mut sides, at);
    let token = sides[1].token;
    let [client, _] = &mut sides;
    assert_eq!(client.write(ends[0], 0, 0, token, 0), Err(EngineError::Range));
    assert_eq!(client.write(ends[0], LEN - 1, 2, token, 0), Err(EngineError::Range));
    assert_eq!(client.write(ends[0], usize::MAX, 2, token, 0), Err(EngineError::Range));
    assert_eq!(client.write(Endpoint(u32::MAX), 0, 1, token, 0), Err(EngineError::Unknown));
    let nowhere = Source { memory: Registered(u32::MAX), offset: 0, len: 1 };
    let target = Target { token, offset: 0 };
    assert_eq!(client.engine.write(ends[0], nowhere, target, 0, 0), Err(EngineError::Unknown));
    assert_eq!(client.engine.deregister(Registered(u32::MAX)), Err(EngineError::Unknown));
    assert_eq!(client.engine.accept(Request(u32::MAX), client.queue, b""), Err(EngineError::Unknown));
    assert_eq!(client.engine.poll(Queue(99), &mut Vec::new()), Err(EngineError::Unknown));
    client.engine.close(Endpoint(u32::MAX));
}

fn an_end_that_closes_is_lost_to_the_other<E: Engine>(fixture: &Fixture<'_, E>) {
    for closes in [0, 1] {
        let (mut sides, at) = sides(fixture);
        let ends = connect(&mut sides, at);
        let stays = 1 - closes;
        sides[closes].engine.close(ends[closes]);
        until("the loss", &mut sides, |sides| sides[stays].times_lost(ends[stays]) > 0);
        for _ in 0..50 {
            sides.iter_mut().for_each(Side::turn);
        }
        assert_eq!(sides[stays].times_lost(ends[stays]), 1, "told once");
        assert_eq!(sides[closes].times_lost(ends[closes]), 0, "who has closed it is told nothing");
        let token = sides[closes].token;
        let refused = sides[stays].write(ends[stays], 0, 1, token, 0);
        assert!(matches!(refused, Err(EngineError::Failed(..))) || refused.is_ok(), "{refused:?}");
        sides[stays].engine.close(ends[stays]);
        assert_eq!(sides[stays].write(ends[stays], 0, 1, token, 0), Err(EngineError::Unknown));
        // The two may connect again.
        sides.iter_mut().for_each(|side| side.events.clear());
        connect(&mut sides, at);
    }
}

fn nothing_lands_in_memory_that_was_taken_back<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let ends = connect(&mut sides, at);
    let token = sides[1].token;
    sides[0].memory.write(0, &[1; 4096]);
    let registered = sides[1].registered;
    sides[1].engine.deregister(registered).expect("it was registered");
    assert_eq!(sides[1].engine.deregister(registered), Err(EngineError::Unknown));
    sides[0].write(ends[0], 0, 4096, token, 1).expect("room");
    // The adapter ends the link of who writes where nothing is registered.
    until("the end", &mut sides, |sides| sides.iter().zip(ends).any(|(side, end)| side.times_lost(end) > 0));
    let mut bytes = [0; 4096];
    sides[1].memory.read(0, &mut bytes);
    assert_eq!(bytes, [0; 4096]);
    assert!(sides[1].immediates().is_empty());
}

fn nothing_lands_through_an_endpoint_that_was_closed<E: Engine>(fixture: &Fixture<'_, E>) {
    for polls in 0..40 {
        let (mut sides, at) = sides(fixture);
        let ends = connect(&mut sides, at);
        let token = sides[1].token;
        sides[0].memory.write(0, &[polls + 1; LEN]);
        for data in 0..4 {
            sides[0].write(ends[0], 16384 * data as usize, 16384, token, data).expect("room");
        }
        for _ in 0..polls {
            sides.iter_mut().for_each(Side::turn);
        }
        sides[1].engine.close(ends[1]);
        let mut before = vec![0; LEN];
        sides[1].memory.read(0, &mut before);
        for _ in 0..100 {
            sides.iter_mut().for_each(Side::turn);
        }
        let mut after = vec![0; LEN];
        sides[1].memory.read(0, &mut after);
        assert!(before == after, "a late write has landed");
        let told: Vec<_> = sides[1].immediates();
        assert!(told.iter().copied().eq(0..told.len() as u32), "a beginning: {told:?}");
    }
}

fn many_endpoints_share_a_queue<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let pairs: Vec<[Endpoint; 2]> = (0..5)
        .map(|_| {
            sides.iter_mut().for_each(|side| side.events.clear());
            connect(&mut sides, at)
        })
        .collect();
    let token = sides[1].token;
    for (data, [first, _]) in pairs.iter().enumerate() {
        sides[0].write(*first, data, 1, token, data as u32).expect("room");
    }
    until("news of all", &mut sides, |[client, server]| {
        server.immediates().len() == pairs.len() && client.completed().len() == pairs.len()
    });
    for news in &sides[1].news {
        let Completion::Immediate { endpoint, data } = news else { panic!("{news:?}") };
        assert_eq!(*endpoint, pairs[*data as usize][1], "it says through which it came");
    }
    for news in &sides[0].news {
        let Completion::Written { endpoint, context, done: true } = news else { panic!("{news:?}") };
        assert_eq!(*endpoint, pairs[*context as usize][0]);
    }
}

fn a_wait_ends_when_there_is_news<E: Engine>(fixture: &Fixture<'_, E>) {
    let (mut sides, at) = sides(fixture);
    let ends = connect(&mut sides, at);
    let token = sides[1].token;
    let end = Instant::now() + PATIENCE;
    for data in 0..20 {
        sides[0].write(ends[0], 0, 8, token, data).expect("room");
        while sides[1].immediates().len() <= data as usize {
            assert!(Instant::now() < end, "it sleeps though there is news");
            // Longer than the patience: only news ends it.
            sides[1].engine.wait(2 * PATIENCE).expect("it waits");
            sides.iter_mut().for_each(Side::turn);
        }
    }
}
