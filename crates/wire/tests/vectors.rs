//! Messages of a real kernel: understood, and written again to the same bytes.

mod capture;

use shunpike_wire::clc::{AcceptVersion, FEATURE_EMULATED_ISM, MAX_LEN, Message, OS_LINUX, Paths, Version};
use shunpike_wire::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId, Reason, Seid};

const GID: Gid = Gid::new(0x5149d358ed6703cd, 0xb092ba55199c31ad);

fn messages(name: &str) -> Vec<Message> {
    capture::clc_messages(&capture::vectors().join(name))
        .iter()
        .map(|bytes| Message::decode(bytes).unwrap_or_else(|e| panic!("{name}: {e}\n{bytes:02x?}")))
        .collect()
}

#[test]
fn every_message_is_written_again_to_the_same_bytes() {
    let mut seen = 0;
    for entry in std::fs::read_dir(capture::vectors()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        for bytes in capture::clc_messages(&path) {
            let message = Message::decode(&bytes).unwrap();
            let mut again = [0xAA; MAX_LEN];
            let len = message.encode(&mut again).unwrap();
            assert_eq!(again[..len], bytes, "{}: {message:?}", path.display());
            assert!(again[len..].iter().all(|&b| b == 0xAA), "wrote behind the message's end");
            seen += 1;
        }
    }
    // Two whole handshakes, one of two UEIDs, and a proposal with its decline.
    assert_eq!(seen, 11);
}

#[test]
fn a_kernels_proposal_is_understood() {
    let Message::Proposal(proposal) = messages("two-ueids.pcap")[0] else { panic!("no proposal") };
    assert_eq!(proposal.version, Version::V2);
    assert_eq!((proposal.v1, proposal.v2), (Paths::None, Paths::SmcD));
    assert_eq!(proposal.peer_id, PeerId::default());
    assert_eq!(proposal.prefix, None);
    let v2 = proposal.smcd.unwrap().v2.unwrap();
    assert_eq!((v2.release, v2.seid_enabled, v2.feature_mask), (1, false, FEATURE_EMULATED_ISM));
    let ueids: Vec<_> = v2.ueids.iter().collect();
    assert_eq!(ueids, [Eid::ueid("SHUNT-TEST-UEID").unwrap(), Eid::ueid("SECOND.EID-2").unwrap()]);
    let smcd = v2.smcd.unwrap();
    assert_eq!(smcd.seid, Seid::NONE);
    assert_eq!(smcd.devices().collect::<Vec<_>>(), [(GID, Chid::LOOPBACK)]);
}

#[test]
fn a_kernels_first_contact_is_understood() {
    let messages = messages("first-and-next-contact.pcap");
    assert_eq!(messages.len(), 6);
    let Message::Accept(accept) = messages[1] else { panic!("no accept") };
    assert_eq!(accept.gid, GID);
    assert_eq!(accept.token, DmbToken(0x59c3b5b22b3b2fc8));
    assert_eq!(accept.size, DmbSize::KERNEL_MAX);
    assert_eq!(accept.link_id, 0x0001_0000);
    let AcceptVersion::V2 { chid, eid, first_contact: Some(contact) } = accept.version else {
        panic!("no extension: {accept:?}")
    };
    assert_eq!((chid, eid.as_str()), (Chid::LOOPBACK, "SHUNT-TEST-UEID"));
    assert_eq!((contact.os, contact.release), (OS_LINUX, 1));
    assert_eq!(contact.v2x.feature_mask, FEATURE_EMULATED_ISM);
    assert!(contact.hostname.starts_with(b"(none)   "));

    let Message::Confirm(confirm) = messages[5] else { panic!("no confirm") };
    assert!(!confirm.is_first_contact());
    assert_eq!(confirm.token, DmbToken(0x60d64c08f09def03));
}

#[test]
fn a_kernels_decline_is_understood() {
    let Message::Decline(decline) = messages("decline.pcap")[1] else { panic!("no decline") };
    assert_eq!(Reason::from_code(decline.diagnosis), Some(Reason::NoUeid));
    assert_eq!((decline.version, decline.out_of_sync, decline.os), (Version::V2, false, OS_LINUX));
}
