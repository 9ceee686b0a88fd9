//! What names this system to its peers.

use crate::config::Config;
use crate::ism::IsmDevice;
use crate::random;
use crate::runtime;
use shunpike_wire::session::{MAX_UEIDS, Welcome};
use shunpike_wire::{Eid, Gid, PeerId, Seid as WireSeid};

/// What names this system to its peers.
pub struct System {
    pub ueids: Vec<Eid>,
    pub seid: WireSeid,
    /// Tells this broker's life from another's.
    pub life: String,
}

impl System {
    /// The configured UEIDs, or one of this machine's own: off s390 there is no SEID, and two systems that
    /// share no UEID do not talk SMC (net/smc/smc_clc.c, SMC_CLC_DECL_NOUEID).
    pub fn new(config: &Config, gid: Gid) -> Self {
        let mut ueids: Vec<Eid> = config.ueids.iter().copied().take(MAX_UEIDS).collect();
        if ueids.is_empty() {
            ueids.push(own_ueid(gid));
        }
        let life = format!("{:032x}", random::gid().0);
        Self { ueids, seid: WireSeid::NONE, life }
    }

    /// The welcome of a new session, in these versions of control and lanes.
    pub fn welcome(&self, device: &dyn IsmDevice, (control, version): (u16, u32)) -> Welcome {
        let mut ueids = [[0; 32]; MAX_UEIDS];
        for (to, ueid) in ueids.iter_mut().zip(&self.ueids) {
            *to = ueid.0;
        }
        Welcome {
            control,
            version,
            // A host that has only emulated devices has no MAC to be known by.
            peer_id: PeerId::default().0,
            gid: device.local_gid().0,
            chid: device.chid().0,
            seid_enabled: false,
            seid: self.seid.0.0,
            ueid_count: self.ueids.len() as u8,
            ueids,
        }
    }

    pub fn report(&self) -> Vec<String> {
        self.ueids.iter().map(|ueid| ueid.as_str().to_owned()).collect()
    }
}

/// "SHUNPIKE-" and 12 digits that are this machine's, so that all its programs have them in common.
fn own_ueid(gid: Gid) -> Eid {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let id: String = [machine, runtime::boot_id(), format!("{:032x}", gid.0)]
        .into_iter()
        .map(|id| id.chars().filter(char::is_ascii_hexdigit).take(12).collect::<String>())
        .find(|id| id.len() == 12)
        .unwrap_or_default();
    Eid::ueid(&format!("SHUNPIKE-{id}")).expect("21 letters, digits and a hyphen")
}
