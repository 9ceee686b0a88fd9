//! Both machines against each other and a device: what they agree, and what they do when something fails.

mod answers;
mod disorder;
mod faults;
mod world;

use super::{Agreed, LocalDevice, NamedDmb};
use crate::clc::{FEATURE_EMULATED_ISM, List, MAX_LEN, Message};
use crate::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId};

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

fn dmb(token: u64) -> NamedDmb {
    NamedDmb { token: DmbToken(token), size: DmbSize::MIN }
}
