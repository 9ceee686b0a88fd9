//! Messages and deaths in any order.

use super::*;
use proptest::prelude::*;

const SESSIONS: u64 = 3;

/// One thing that may happen to the broker.
#[derive(Clone, Debug)]
enum Event {
    Nominate {
        session: u64,
        conn: u64,
        side: u8,
        port: u16,
    },
    Moving {
        session: u64,
        conn: u64,
    },
    Withdraw {
        session: u64,
        conn: u64,
    },
    Register {
        session: u64,
        conn: u64,
    },
    Attach {
        session: u64,
        conn: u64,
        token: usize,
    },
    Unregister {
        session: u64,
        token: usize,
    },
    Detach {
        session: u64,
        token: usize,
        gone: bool,
    },
    Park {
        session: u64,
        token: usize,
    },
    Reuse {
        session: u64,
        conn: u64,
        token: usize,
    },
    /// Some seconds go by.
    Wait(u64),
    Die {
        session: u64,
    },
    Active(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let session = 0..SESSIONS;
    let conn = prop_oneof![0..3_u64, Just(1 << 32)];
    let token = 0..8_usize;
    let end = (session.clone(), conn);
    let holding = (session.clone(), token.clone());
    prop_oneof![
        8 => (end.clone(), 1..3_u8, 1..3_u16)
            .prop_map(|((session, conn), side, port)| Event::Nominate { session, conn, side, port }),
        1 => end.clone().prop_map(|(session, conn)| Event::Moving { session, conn }),
        2 => end.clone().prop_map(|(session, conn)| Event::Withdraw { session, conn }),
        4 => end.clone().prop_map(|(session, conn)| Event::Register { session, conn }),
        4 => (end.clone(), token.clone()).prop_map(|((session, conn), token)| Event::Attach { session, conn, token }),
        2 => holding.clone().prop_map(|(session, token)| Event::Unregister { session, token }),
        3 => (holding.clone(), prop::bool::weighted(0.8))
            .prop_map(|((session, token), gone)| Event::Detach { session, token, gone }),
        3 => holding.prop_map(|(session, token)| Event::Park { session, token }),
        3 => (end, token).prop_map(|((session, conn), token)| Event::Reuse { session, conn, token }),
        1 => (1..7_u64).prop_map(Event::Wait),
        1 => session.prop_map(|session| Event::Die { session }),
        1 => any::<bool>().prop_map(Event::Active),
    ]
}

proptest! {
    /// Whatever happens in whatever order: a match is mutual, only living sessions are written to, memory is
    /// given only to the peer of its owner, and nothing is left once all are gone.
    #[test]
    fn tables_stay_sound(events in prop::collection::vec(event(), 0..80)) {
        let mut exchange = exchange();
        let mut alive: Vec<u64> = (0..SESSIONS).collect();
        let mut now = Instant::now();
        // Who owns each token, and the peer that the owner had then.
        let mut tokens: Vec<(u64, Party)> = Vec::new();
        for session in 0..SESSIONS {
            exchange.begin_session(SessionId(session), Identity::of_user(0), bell().into(), 1);
        }
        let token_of = |tokens: &[(u64, Party)], n: usize| tokens.get(n).map_or(99, |(token, _)| *token);
        for event in events {
            let (Event::Nominate { session, .. }
            | Event::Moving { session, .. }
            | Event::Withdraw { session, .. }
            | Event::Register { session, .. }
            | Event::Attach { session, .. }
            | Event::Unregister { session, .. }
            | Event::Detach { session, .. }
            | Event::Park { session, .. }
            | Event::Reuse { session, .. }
            | Event::Die { session }) = event
            else {
                match event {
                    Event::Active(active) => exchange.set_active(active),
                    Event::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        exchange.drop_stale(now);
                    }
                    _ => {}
                }
                continue;
            };
            if !alive.contains(&session) {
                continue;
            }
            match event {
                Event::Nominate { conn, side, port, .. } => {
                    let role = if side == 1 { Role::Client } else { Role::Server };
                    exchange.nominate(party(session, conn), role, facts(side, port), false);
                }
                Event::Moving { conn, .. } => {
                    exchange.nominate(party(session, conn), Role::Client, Proof::Moving, false);
                }
                Event::Withdraw { conn, .. } => exchange.withdraw(party(session, conn)),
                Event::Register { conn, .. } => {
                    let owner = party(session, conn);
                    let peer = exchange.peer(owner);
                    exchange.register(owner, 0, memory());
                    let told = exchange.posts.pop().expect("an answer").message;
                    if let FromBroker::Registered { token, reason: 0, .. } = told {
                        tokens.push((token, peer.expect("only with a match")));
                    }
                }
                Event::Attach { conn, token, .. } => {
                    exchange.attach(party(session, conn), token_of(&tokens, token));
                    let post = exchange.posts.pop().expect("an answer");
                    if !post.fds.is_empty() {
                        prop_assert_eq!(tokens[token].1, party(session, conn));
                    }
                }
                Event::Unregister { token, .. } => {
                    exchange.unregister(SessionId(session), token_of(&tokens, token));
                }
                Event::Detach { token, gone, .. } => {
                    exchange.detach(SessionId(session), token_of(&tokens, token), gone);
                }
                Event::Park { token, .. } => {
                    exchange.park(SessionId(session), token_of(&tokens, token), now);
                }
                Event::Reuse { conn, token, .. } => {
                    let owner = party(session, conn);
                    exchange.reuse(owner, token_of(&tokens, token));
                    let told = exchange.posts.pop().expect("an answer").message;
                    if let FromBroker::Registered { token: new, reason: 0, .. } = told {
                        let peer = exchange.peer(owner).expect("only with a match");
                        prop_assert_eq!(tokens[token].1.session, peer.session);
                        prop_assert_ne!(new, tokens[token].0);
                        tokens.push((new, peer));
                    }
                }
                Event::Die { .. } => {
                    exchange.end_session(SessionId(session));
                    alive.retain(|other| *other != session);
                }
                Event::Active(_) | Event::Wait(_) => {}
            }
            prop_assert_eq!(exchange.audit(), Ok(()));
            // Of what has ended a part is there yet when the next thing happens.
            exchange.let_go(2);
            prop_assert_eq!(exchange.audit(), Ok(()));
            for post in std::mem::take(&mut exchange.posts) {
                prop_assert!(alive.contains(&post.to.0), "{:?} to the dead", post.message);
            }
        }
        for session in alive {
            exchange.end_session(SessionId(session));
        }
        while exchange.is_ending() {
            exchange.let_go(3);
            prop_assert_eq!(exchange.audit(), Ok(()));
        }
        prop_assert!(exchange.is_empty());
    }
}
