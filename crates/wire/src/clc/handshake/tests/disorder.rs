//! Inputs in any order.

use proptest::prelude::*;

use super::world::Machine;
use super::*;
use crate::Reason;
use crate::clc::Decline;
use crate::clc::handshake::{Client, Input, Next, Server};

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
                5 => Input::Registered(NamedDmb { token: own, size }),
                6 => Input::Attached(NamedDmb { token: peer, size }),
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
