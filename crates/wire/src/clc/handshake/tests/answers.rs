//! What is agreed, and what each end calls an answer that does not fit.

use super::world::{CLIENT, End, Fault, World};
use super::*;
use crate::clc::handshake::{Client, Input, Next, RELEASE, Server, Step};
use crate::clc::{AcceptConfirm, AcceptVersion, Decline, FirstContact, GidChid, Paths, Proposal, Version};
use crate::session::Welcome;
use crate::{Reason, Seid};

fn run_between(client: LocalDevice, server: LocalDevice) -> World {
    let world = World::run([client, server], [true; 2], Fault::None);
    world.check();
    world
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
    assert!(Decline::new(host().peer_id, Reason::Sync).out_of_sync);
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

/// An accept or confirm that fits, to be changed.
fn answer(host: &LocalDevice) -> AcceptConfirm {
    host.answer(dmb(5), 3, host.ueids.at(0).unwrap(), Some(Agreed::with(1, FEATURE_EMULATED_ISM)))
}

/// Ways to spoil an answer, and what either end calls it.
fn spoilt() -> Vec<(AcceptConfirm, Reason, Reason)> {
    let good = answer(&host());
    let AcceptVersion::V2 { chid, eid, first_contact: Some(contact) } = good.version else { panic!() };
    let v2 = |chid, eid, first_contact| AcceptConfirm {
        version: AcceptVersion::V2 { chid, eid, first_contact },
        ..good
    };
    let release = |release| v2(chid, eid, Some(FirstContact { release, ..contact }));
    let broken = Reason::PeerViolation;
    vec![
        (AcceptConfirm { gid: Gid::new(1, 1), ..good }, Reason::GidUnreachable, broken),
        (v2(Chid(1), eid, Some(contact)), Reason::NoSmcDV2Device, broken),
        (v2(chid, Eid([0; 32]), Some(contact)), Reason::NoUeid, broken),
        (v2(chid, eid, None), Reason::Sync, Reason::Sync),
        (release(RELEASE + 1), Reason::ReleaseMismatch, Reason::ReleaseMismatch),
        (
            AcceptConfirm { version: AcceptVersion::V1 { first_contact: true }, ..good },
            Reason::VersionMismatch,
            Reason::VersionMismatch,
        ),
    ]
}

fn reason(step: &Step<'_>) -> Option<Reason> {
    match step.next {
        Next::Fallback(fallback) => Some(fallback.reason),
        _ => None,
    }
}

fn bytes(message: Message) -> Vec<u8> {
    let mut bytes = vec![0; MAX_LEN];
    let len = message.encode(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn the_client_takes_no_other_answer_than_to_its_offer() {
    let host = host();
    let mut out = [0; MAX_LEN];
    let mut hear = |message| {
        let (mut client, _) = Client::start(&host, true, 1, &mut out);
        reason(&client.step(&host, Input::Clc(&bytes(message)), &mut [0; MAX_LEN]))
    };
    assert_eq!(hear(Message::Accept(answer(&host))), None);
    assert_eq!(hear(Message::Confirm(answer(&host))), Some(Reason::Sync));
    for (accept, expected, _) in spoilt() {
        assert_eq!(hear(Message::Accept(accept)), Some(expected), "{accept:?}");
    }
}

#[test]
fn a_zero_seid_is_not_known_even_where_it_is_enabled() {
    let host = LocalDevice { seid: Some(Seid::NONE), ..host() };
    let accept = host.answer(dmb(5), 3, Seid::NONE.0, Some(Agreed::with(1, FEATURE_EMULATED_ISM)));
    let mut out = [0; MAX_LEN];
    let (mut client, _) = Client::start(&host, true, 1, &mut out);
    let step = client.step(&host, Input::Clc(&bytes(Message::Accept(accept))), &mut out);
    assert_eq!(reason(&step), Some(Reason::NoUeid));
}

#[test]
fn what_cannot_be_read_is_declined_by_its_kind() {
    let good = bytes(Message::Accept(answer(&host())));
    let hear = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        let end = bytes.len() - 4;
        bytes[at..at + value.len()].copy_from_slice(value);
        if at == 0 {
            bytes[end..].copy_from_slice(value);
        }
        let mut out = [0; MAX_LEN];
        let (mut client, _) = Client::start(&host(), true, 1, &mut out);
        let step = client.step(&host(), Input::Clc(&bytes), &mut out);
        assert!(step.send.is_some());
        reason(&step)
    };
    assert_eq!(hear(0, &[0xe2, 0xd4, 0xc3, 0xd9]), Some(Reason::ModeMismatch));
    assert_eq!(hear(7, &[0x39]), Some(Reason::VersionMismatch));
    assert_eq!(hear(4, &[0]), Some(Reason::PeerViolation));
}

#[test]
fn the_server_takes_no_other_confirm_than_to_its_accept() {
    let host = host();
    let mut out = [0; MAX_LEN];
    let (_, step) = Client::start(&host, true, 1, &mut out);
    let proposal = step.send.unwrap().to_vec();
    let mut hear = |message| {
        let mut server = Server::new(true, 1);
        server.step(&host, Input::Clc(&proposal), &mut out);
        server.step(&host, Input::Registered(dmb(6)), &mut out);
        reason(&server.step(&host, Input::Clc(&bytes(message)), &mut [0; MAX_LEN]))
    };
    assert_eq!(hear(Message::Confirm(answer(&host))), None);
    assert_eq!(hear(Message::Accept(answer(&host))), Some(Reason::Sync));
    for (confirm, _, expected) in spoilt() {
        assert_eq!(hear(Message::Confirm(confirm)), Some(expected), "{confirm:?}");
    }
}

#[test]
fn the_lower_release_and_the_common_features_are_agreed() {
    let host = host();
    let mut out = [0; MAX_LEN];
    let (_, step) = Client::start(&host, true, 1, &mut out);
    let Ok(Message::Proposal(mut proposal)) = Message::decode(step.send.unwrap()) else { panic!() };
    for (offered, mask, expected) in [(1, 0xffff, (1, 1)), (15, 0x8000, (1, 0)), (0, 0xffff, (0, 0))] {
        let v2 = proposal.smcd.as_mut().unwrap().v2.as_mut().unwrap();
        (v2.release, v2.feature_mask) = (offered, mask);
        let mut server = Server::new(true, 1);
        server.step(&host, Input::Clc(&bytes(Message::Proposal(proposal))), &mut out);
        let step = server.step(&host, Input::Registered(dmb(6)), &mut out);
        let Ok(Message::Accept(accept)) = Message::decode(step.send.unwrap()) else { panic!() };
        let AcceptVersion::V2 { first_contact: Some(contact), .. } = accept.version else { panic!() };
        assert_eq!((contact.release, contact.v2x.feature_mask), expected);
    }
}

#[test]
fn the_broker_announces_what_the_handshake_needs() {
    let mut ueids = [[0; 32]; 8];
    ueids[0] = Eid::ueid("ONE").unwrap().0;
    let welcome = Welcome {
        control: 1,
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
