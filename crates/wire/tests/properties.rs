//! Any message that can be made is read back as it was; any bytes are an error or a message.

mod capture;

use proptest::prelude::*;

use shunpike_wire::clc::{
    AcceptConfirm, AcceptVersion, ClcError, Decline, FirstContact, FirstContactV2x, GidChid, Ipv6Prefix,
    List, MAX_LEN, Message, Paths, Prefix, Proposal, SmcdArea, SmcdV2Extension, V2Extension, Version,
};
use shunpike_wire::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId, Seid};

fn list<T: Copy + std::fmt::Debug, const N: usize>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = List<T, N>> {
    prop::collection::vec(item, 0..=N).prop_map(|items| {
        let mut list = List::new();
        items.into_iter().for_each(|item| assert!(list.push(item)));
        list
    })
}

/// CHIDs of which about half are emulated, so that pairs come about.
fn chid() -> impl Strategy<Value = Chid> {
    prop_oneof![any::<u16>().prop_map(Chid), (0xFFFEu16..).prop_map(Chid)]
}

fn eid() -> impl Strategy<Value = Eid> {
    any::<[u8; 32]>().prop_map(Eid)
}

fn gid_chid() -> impl Strategy<Value = GidChid> {
    (any::<u64>(), chid()).prop_map(|(gid, chid)| GidChid { gid, chid })
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let ipv6 =
        list((any::<[u8; 16]>(), any::<u8>()).prop_map(|(prefix, length)| Ipv6Prefix { prefix, length }));
    (any::<[u8; 4]>(), any::<u8>(), ipv6).prop_map(|(subnet, length, ipv6)| Prefix { subnet, length, ipv6 })
}

fn v2_extension() -> impl Strategy<Value = V2Extension> {
    let smcd = (eid(), list(gid_chid())).prop_map(|(seid, gids)| SmcdV2Extension { seid: Seid(seid), gids });
    let numbers = (0u8..16, any::<bool>(), any::<[u8; 16]>(), any::<u8>(), any::<u8>(), any::<u16>());
    (numbers, list(eid()), prop::option::of(smcd)).prop_map(
        |((release, seid_enabled, roce, max_conns, max_links, feature_mask), ueids, smcd)| V2Extension {
            release,
            seid_enabled,
            roce,
            max_conns,
            max_links,
            feature_mask,
            ueids,
            smcd,
        },
    )
}

fn paths() -> impl Strategy<Value = Paths> {
    prop_oneof![Just(Paths::SmcR), Just(Paths::SmcD), Just(Paths::None), Just(Paths::Both)]
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V1), Just(Version::V2)]
}

/// Proposals whose parts contradict one another in no way.
fn proposal() -> impl Strategy<Value = Proposal> {
    let base = (version(), paths(), paths(), any::<[u8; 8]>(), any::<[u8; 16]>(), any::<[u8; 6]>());
    let area = (gid_chid(), any::<[u8; 8]>(), prop::option::of(v2_extension()));
    (base, prefix(), prop::option::of(area)).prop_map(
        |((version, v1, v2, peer_id, ib_gid, mac), prefix, area)| {
            let mut smcd = area.map(|(ism, vendor, v2)| SmcdArea { ism, vendor, v2 });
            if smcd.is_none() && v1 != Paths::SmcR {
                let ism = GidChid { gid: 0, chid: Chid(0) };
                smcd = Some(SmcdArea { ism, vendor: [0; 8], v2: None });
            }
            if let Some(area) = &mut smcd {
                if version == Version::V1 {
                    area.v2 = None;
                }
                if let Some(extension) = &mut area.v2 {
                    extension.smcd = extension.smcd.filter(|_| v2.has_smcd());
                }
            }
            let prefix = if v1 == Paths::None { None } else { Some(prefix) };
            Proposal { version, v1, v2, peer_id: PeerId(peer_id), ib_gid, mac, prefix, smcd }
        },
    )
}

fn first_contact() -> impl Strategy<Value = FirstContact> {
    let v2x = (any::<u8>(), any::<u8>(), any::<u16>(), any::<u32>());
    (any::<bool>(), 0u8..16, 0u8..16, any::<[u8; 32]>(), v2x).prop_map(
        |(v2_direct, os, release, hostname, (max_conns, max_links, feature_mask, vendor))| {
            let v2x = FirstContactV2x { max_conns, max_links, feature_mask, vendor };
            let v2x = if release == 0 { FirstContactV2x::default() } else { v2x };
            FirstContact { v2_direct, os, release, hostname, v2x }
        },
    )
}

fn accept_confirm() -> impl Strategy<Value = AcceptConfirm> {
    let version = prop_oneof![
        any::<bool>().prop_map(|first_contact| AcceptVersion::V1 { first_contact }),
        (chid(), eid(), prop::option::of(first_contact()))
            .prop_map(|(chid, eid, first_contact)| AcceptVersion::V2 { chid, eid, first_contact }),
    ];
    (any::<u128>(), any::<u64>(), 0u8..16, any::<u32>(), version).prop_map(
        |(gid, token, class, link_id, version)| {
            let gid = match version {
                AcceptVersion::V1 { .. } => Gid::new(gid as u64, 0),
                AcceptVersion::V2 { .. } => Gid(gid),
            };
            let size = DmbSize::from_class(class).unwrap();
            AcceptConfirm { gid, token: DmbToken(token), size, link_id, version }
        },
    )
}

fn decline() -> impl Strategy<Value = Decline> {
    (version(), any::<bool>(), any::<[u8; 8]>(), any::<u32>(), 0u8..16, any::<[u32; 4]>()).prop_map(
        |(version, out_of_sync, peer_id, diagnosis, os, v2)| {
            let v2_diagnoses = if version == Version::V1 { [0; 4] } else { v2 };
            Decline { version, out_of_sync, peer_id: PeerId(peer_id), diagnosis, os, v2_diagnoses }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        3 => proposal().prop_map(Message::Proposal),
        1 => accept_confirm().prop_map(Message::Accept),
        1 => accept_confirm().prop_map(Message::Confirm),
        1 => decline().prop_map(Message::Decline),
    ]
}

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0xAA; MAX_LEN];
    let len = message.encode(&mut bytes).unwrap();
    assert!(bytes[len..].iter().all(|&b| b == 0xAA));
    bytes.truncate(len);
    bytes
}

/// A message of the kernel's with some bytes changed, and perhaps cut.
fn mutilated() -> impl Strategy<Value = Vec<u8>> {
    let mut whole = Vec::new();
    for name in ["first-and-next-contact.pcap", "two-ueids.pcap", "decline.pcap"] {
        whole.extend(capture::clc_messages(&capture::vectors().join(name)));
    }
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    (prop::sample::select(whole), changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(mut bytes, changes, at, cut)| {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if cut {
                bytes = shortened(&bytes, 8 + at.index(bytes.len() - 8));
            }
            bytes
        },
    )
}

/// A message cut to so many bytes and made to look whole again, so that its body is looked at.
fn shortened(bytes: &[u8], body: usize) -> Vec<u8> {
    let mut cut = [&bytes[..body], &bytes[..4]].concat();
    let len = cut.len() as u16;
    cut[5..7].copy_from_slice(&len.to_be_bytes());
    cut
}

/// What is read is written again to something that reads the same.
fn stable(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let Ok(message) = Message::decode(bytes) else { return Ok(false) };
    let again = encode(&message);
    prop_assert!(again.len() <= MAX_LEN);
    prop_assert_eq!(Message::decode(&again), Ok(message));
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_written_is_read(message in message()) {
        let bytes = encode(&message);
        prop_assert_eq!(bytes.len(), message.encoded_len());
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn no_prefix_of_a_message_is_a_message_and_none_fits_less_room(message in message(), at: prop::sample::Index) {
        let bytes = encode(&message);
        let cut = at.index(bytes.len());
        prop_assert!(Message::decode(&bytes[..cut]).is_err());
        let mut small = vec![0; cut];
        prop_assert_eq!(message.encode(&mut small), Err(ClcError::Room { need: bytes.len(), have: cut }));
    }

    #[test]
    fn no_byte_before_the_trailer_can_be_left_out(message in message(), at: prop::sample::Index) {
        let bytes = encode(&message);
        let body = 8 + at.index(bytes.len() - 8 - 4);
        prop_assert!(Message::decode(&shortened(&bytes, body)).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
        stable(&bytes)?;
    }

    #[test]
    fn mutilated_messages_never_panic(bytes in mutilated()) {
        stable(&bytes)?;
    }

    #[test]
    fn emulated_devices_are_pairs(gids in list(gid_chid())) {
        let smcd = SmcdV2Extension { seid: Seid::NONE, gids };
        // Told once more, in another way: walk from the left, take two where the CHIDs pair up.
        let entries: Vec<_> = gids.iter().collect();
        let mut expected = Vec::new();
        let mut rest = &entries[..];
        while let [first, tail @ ..] = rest {
            rest = tail;
            if first.chid.0 < 0xFF00 {
                expected.push((Gid::new(first.gid, 0), first.chid));
                continue;
            }
            match tail {
                [second, after @ ..] if second.chid == first.chid => {
                    expected.push((Gid::new(first.gid, second.gid), first.chid));
                    rest = after;
                }
                _ => {}
            }
        }
        prop_assert_eq!(smcd.devices().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn devices_offered_are_the_devices_found(devices in prop::collection::vec((any::<u128>(), chid()), 0..10)) {
        let mut smcd = SmcdV2Extension { seid: Seid::NONE, gids: List::new() };
        let mut taken = Vec::new();
        for (gid, chid) in devices {
            let gid = if chid.is_emulated() { Gid(gid) } else { Gid::new(gid as u64, 0) };
            let before = smcd.gids;
            if smcd.offer(gid, chid) {
                taken.push((gid, chid));
            } else {
                prop_assert_eq!(smcd.gids, before, "added half a device");
                prop_assert!(smcd.gids.len() >= 7, "refused with room for a pair");
            }
        }
        prop_assert_eq!(smcd.devices().collect::<Vec<_>>(), taken);
    }
}

/// The largest message there is.
#[test]
fn a_proposal_with_all_lists_full_is_as_long_as_the_longest() {
    fn full<T: Copy, const N: usize>(item: T) -> List<T, N> {
        let mut list = List::new();
        while list.push(item) {}
        list
    }
    let chid = Chid::LOOPBACK;
    let smcd = SmcdV2Extension { seid: Seid::NONE, gids: full(GidChid { gid: 1, chid }) };
    let v2 = V2Extension {
        release: 1,
        seid_enabled: true,
        roce: [0; 16],
        max_conns: 0,
        max_links: 0,
        feature_mask: 1,
        ueids: full(Eid([b'X'; 32])),
        smcd: Some(smcd),
    };
    let ipv6 = full(Ipv6Prefix { prefix: [1; 16], length: 64 });
    let message = Message::Proposal(Proposal {
        version: Version::V2,
        v1: Paths::Both,
        v2: Paths::Both,
        peer_id: PeerId([1; 8]),
        ib_gid: [2; 16],
        mac: [3; 6],
        prefix: Some(Prefix { subnet: [0; 4], length: 0, ipv6 }),
        smcd: Some(SmcdArea { ism: GidChid { gid: 4, chid }, vendor: [5; 8], v2: Some(v2) }),
    });
    assert_eq!(encode(&message).len(), MAX_LEN);
}

/// Each way in which a message can be wrong is told apart.
#[test]
fn errors_name_what_is_wrong() {
    let accept = capture::clc_messages(&capture::vectors().join("two-ueids.pcap"))[1].clone();
    let proposal = capture::clc_messages(&capture::vectors().join("two-ueids.pcap"))[0].clone();
    let with = |from: &[u8], at: usize, value: &[u8]| {
        let mut bytes = from.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        Message::decode(&bytes).unwrap_err()
    };
    assert_eq!(Message::decode(&[]), Err(ClcError::Truncated { need: 4, have: 0 }));
    assert_eq!(with(&accept, 0, b"GET "), ClcError::Eyecatcher(*b"GET "));
    assert_eq!(with(&accept, 74, b"GET "), ClcError::Trailer(*b"GET "));
    assert_eq!(with(&accept, 4, &[9]), ClcError::Type(9));
    assert_eq!(with(&accept, 5, &[0, 77]), ClcError::Length { stated: 77, actual: 78 });
    assert_eq!(with(&accept, 7, &[0x31]), ClcError::Version(3));
    assert_eq!(with(&accept, 7, &[0x20]), ClcError::Value("SMC type"));
    assert_eq!(with(&accept, 24, &[1]), ClcError::Value("DMBE index"));
    // Version 1 has 48 bytes, and first contact more than there are.
    assert_eq!(with(&accept, 7, &[0x11]), ClcError::Length { stated: 78, actual: 48 });
    assert_eq!(with(&accept, 7, &[0x29]), ClcError::Truncated { need: 76, have: 74 });
    assert_eq!(with(&proposal, 80, &[9]), ClcError::Count { list: "UEIDs", count: 9, max: 8 });
    let list = "GID-CHID entries";
    assert_eq!(with(&proposal, 81, &[9]), ClcError::Count { list, count: 9, max: 8 });
    assert_eq!(with(&proposal, 81, &[3]), ClcError::Truncated { need: 260, have: 252 });
    assert_eq!(with(&proposal, 50, &[0xff, 0xff]), ClcError::Truncated { need: 65591, have: 252 });

    let mut smc_d = proposal.clone();
    smc_d[..4].copy_from_slice(&accept[..4]);
    smc_d[252..].copy_from_slice(&accept[..4]);
    assert_eq!(Message::decode(&smc_d), Err(ClcError::Eyecatcher([0xe2, 0xd4, 0xc3, 0xc4])));

    let mut smc_r = accept;
    smc_r[..4].copy_from_slice(&proposal[..4]);
    smc_r[74..].copy_from_slice(&proposal[..4]);
    assert_eq!(Message::decode(&smc_r), Err(ClcError::SmcR));
}

/// Parts whose lists are empty still have all their reserved bytes.
#[test]
fn empty_parts_are_read_to_their_end() {
    let captured = capture::clc_messages(&capture::vectors().join("two-ueids.pcap"))[0].clone();
    let Ok(Message::Proposal(mut proposal)) = Message::decode(&captured) else { panic!() };
    let v2 = proposal.smcd.as_mut().unwrap().v2.as_mut().unwrap();
    v2.ueids = List::new();
    v2.smcd.as_mut().unwrap().gids = List::new();
    let mut without_smcd = proposal;
    without_smcd.smcd.as_mut().unwrap().v2.as_mut().unwrap().smcd = None;
    for (proposal, len) in [(proposal, 172), (without_smcd, 124)] {
        let bytes = encode(&Message::Proposal(proposal));
        assert_eq!(bytes.len(), len);
        for body in 8..len - 4 {
            assert!(Message::decode(&shortened(&bytes, body)).is_err(), "{body} of {len}");
        }
    }
}

/// Offsets of parts that the header does not offer are not followed.
#[test]
fn what_is_not_offered_is_not_read() {
    let proposal = capture::clc_messages(&capture::vectors().join("two-ueids.pcap"))[0].clone();
    let v2 = |last_of_header| {
        let mut bytes = proposal.clone();
        bytes[7] = last_of_header;
        match Message::decode(&bytes) {
            Ok(Message::Proposal(proposal)) => proposal.smcd.unwrap().v2,
            other => panic!("{other:?}"),
        }
    };
    assert!(v2(0x26).unwrap().smcd.is_some());
    assert!(v2(0x22).unwrap().smcd.is_none(), "SMC-R of version 2 only");
    assert!(v2(0x16).is_none(), "version 1");
}
