//! DMBs that nobody looks at any more: kept for other connections if the broker agrees, or given back to it.

use shunpike_shm::lane::Dmb;
use shunpike_wire::DmbToken;
use shunpike_wire::session::ToBroker;

use crate::device::{self, Lane, Owner, Retired, Stage, due};
use crate::look;
use crate::session::Session;
use crate::spares::{Spare, Spares};

/// Unmaps, or keeps for other connections, what nobody can look at any more, and tells the broker.
pub fn sweep(session: &mut Session) {
    if !device::turn() {
        return;
    }
    // A broker that turns out to be gone ends handshakes, which take other locks and retire: none held here.
    let mut from = 0;
    while let Some(item) = due(&mut from) {
        conclude(session, item);
    }
    if session.device.is_some() && device::is_untold() {
        look::look_later();
    }
}

fn conclude(session: &mut Session, item: Retired) {
    let Retired { region, token: DmbToken(token), owner, stage, lane, .. } = item;
    match (owner, stage, lane) {
        (Owner::Ours, Stage::Spare, Some(Lane { group, forks, ring })) => {
            park(session, Spare { region, token: item.token, group, forks, ring });
        }
        (Owner::Ours, ..) => {
            session.send(&ToBroker::Unregister { token });
        }
        _ => {
            session.send(&ToBroker::Detach { token, gone: stage == Stage::Unmapped && lane.is_some() });
        }
    }
}

/// Keeps what no thread of ours looks at any more, if the broker agrees.
fn park(session: &mut Session, spare: Spare) {
    if session.device.is_none() {
        return spare.let_go();
    }
    if let Some(evicted) = session.spares.put(spare) {
        discard(session, evicted);
    }
    session.send(&ToBroker::Park { token: spare.token.0 });
}

/// One with a ring of `ring` bytes for a connection of link group `group`, as good as new.
pub(crate) fn take(session: &mut Session, group: u32, ring: u32) -> Option<Spare> {
    let latest =
        |spares: &Spares| spares.places(|spare, ready| ready && spare.is_like(group, ring)).next_back();
    while let Some(at) = latest(&session.spares) {
        let spare = session.spares.remove(at)?;
        if spare.forks == device::forks() {
            Dmb::reset(spare.region);
            return Some(spare);
        }
        // A child may have it still, and must not see the next connection's bytes.
        discard(session, spare);
    }
    None
}

fn discard(session: &mut Session, spare: Spare) {
    spare.let_go();
    session.send(&ToBroker::Unregister { token: spare.token.0 });
}
