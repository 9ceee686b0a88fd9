//! Bytes of a hostile peer: read as a CLC message, and heard by both ends of a handshake.

use shunpike_wire::clc::handshake::{Client, Input, LocalDevice, NamedDmb, Next, Server};
use shunpike_wire::clc::{List, MAX_LEN, Message};
use shunpike_wire::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId};

/// One input.
pub fn run(bytes: &[u8]) {
    read_again(bytes);

    // The GID and the UEID of the seeds, so that messages derived from them get far.
    let mut ueids = List::new();
    assert!(ueids.push(Eid(*b"SHUNT-TEST-UEID                 ")));
    let host = LocalDevice {
        gid: Gid::new(0x5149d358ed6703cd, 0xb092ba55199c31ad),
        chid: Chid::LOOPBACK,
        peer_id: PeerId::default(),
        seid: None,
        ueids,
        hostname: [b' '; 32],
    };
    let own = NamedDmb { token: DmbToken(1), size: DmbSize::MIN };
    let mut out = [0; MAX_LEN];

    let (mut client, _) = Client::start(&host, true, 1, &mut out);
    if let Next::Attach(peer) = client.step(&host, Input::Clc(bytes), &mut out).next {
        assert_eq!(client.step(&host, Input::Attached(peer), &mut out).next, Next::Register);
        let open = client.step(&host, Input::Registered(own), &mut out);
        assert!(matches!(open.next, Next::Open(_)));
        read_again(open.send.unwrap());
    }

    let mut server = Server::new(true, 1);
    if let Next::Register = server.step(&host, Input::Clc(bytes), &mut out).next {
        let accept = server.step(&host, Input::Registered(own), &mut out);
        read_again(accept.send.unwrap());
        // A proposal again, where a confirm belongs.
        assert!(matches!(server.step(&host, Input::Clc(bytes), &mut out).next, Next::Fallback(_)));
    }
}

/// A message that was read is written to bytes that read the same.
fn read_again(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let mut again = [0; MAX_LEN];
        let len = message.encode(&mut again).unwrap();
        assert_eq!(Message::decode(&again[..len]), Ok(message));
        if let Message::Proposal(proposal) = message
            && let Some(smcd) = proposal.smcd.and_then(|area| area.v2).and_then(|v2| v2.smcd)
        {
            assert!(smcd.devices().count() <= smcd.gids.len());
        }
    }
}
