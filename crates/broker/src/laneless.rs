//! Programs whose library speaks another version of the lanes' protocol: one release back or forth, as after an upgrade that has restarted
//! the broker. They get no lanes here. They are listed, can be told to give up the lanes that they have from an earlier
//! broker, and obey the switch.
//!
//! What they share with us may have any layout, and is not looked at: not their arena, and no message but those of control.

use crate::ends::{Party, SessionId};
use crate::report::{OtherVersion, ReasonText};
use crate::server::{End, Server};
use crate::session::{Kind, Session};
use shunpike_shm::pages::SessionPage;
use shunpike_shm::published::Published;
use shunpike_wire::Reason;
use shunpike_wire::session::{CONTROL, ConnId, FromBroker, LAST_WITHOUT_CONTROL, ToBroker, VERSION};
use std::rc::Rc;

/// A program without lanes, as far as it says.
pub struct Laneless {
    /// Its name, /proc/PID/comm.
    pub comm: String,
    /// Its version of the control protocol; 0: it has none, and asks for lanes as it always has.
    control: u16,
    /// Its version of the lanes' protocol.
    version: u32,
    /// Connections on lanes, and others; `None`: it has not said.
    connections: Option<(u32, u32)>,
    /// Counts what is sent to it.
    pub page: Published<SessionPage>,
}

/// Which version the welcome of a program is to be in; `None`: its words are not known here at all.
pub fn heard_as(control: u16, version: u32) -> Option<(u16, u32)> {
    match control {
        0 if version == LAST_WITHOUT_CONTROL => Some((0, version)),
        0 => None,
        _ => Some((control.min(CONTROL), VERSION)),
    }
}

/// The end that a nomination names, in the form that it had when there was no control protocol: a type, then the end.
fn nominated(message: &[u8]) -> Option<ConnId> {
    const NOMINATE: [u8; 2] = 2u16.to_le_bytes();
    let conn = message.strip_prefix(&NOMINATE)?.first_chunk()?;
    Some(ConnId(u64::from_le_bytes(*conn)))
}

impl Server {
    /// A program has said hello in another version than ours.
    pub(crate) fn hello_without_lanes(
        &mut self,
        id: SessionId,
        (control, version): (u16, u32),
        comm: String,
    ) -> Result<(), End> {
        let heard = heard_as(control, version);
        let (says, speaks) = heard.unwrap_or((CONTROL, VERSION));
        let welcome = self.system.welcome(self.exchange.device.as_ref(), (says, speaks));
        let page = Published::<SessionPage>::create("shunpike-session").map_err(|_| End)?;
        let page_fd = Rc::new(page.fd().try_clone_to_owned().map_err(|_| End)?.into());
        let fds = vec![page_fd, self.knobs_fd()];
        let session = self.sessions.get_mut(&id).ok_or(End)?;
        let (pid, uid) = (session.peer.pid, session.peer.uid());
        tracing::warn!(pid, uid, comm, control, version, ours = VERSION, "another version: it gets no lanes");
        // One that we cannot talk to hears which version we speak, and that is all.
        session.closing = heard.is_none();
        session.kind = Kind::Laneless(Box::new(Laneless { comm, control, version, connections: None, page }));
        let sent = session.post(&FromBroker::Welcome(welcome), fds);
        self.note(id, sent);
        Ok(())
    }

    /// A message of such a program. What is not control's is passed over, with its descriptors.
    pub(crate) fn hear_without_lanes(&mut self, id: SessionId, message: &[u8]) {
        let Some(Session { kind: Kind::Laneless(program), .. }) = self.sessions.get_mut(&id) else { return };
        match ToBroker::decode(message) {
            Ok(ToBroker::Lanes { lanes, plain }) => program.connections = Some((lanes, plain)),
            _ if program.control == 0 => {
                if let Some(conn) = nominated(message) {
                    let reason = Reason::VersionDiffers.code();
                    self.exchange.tell(id, FromBroker::Refused { conn, reason });
                }
            }
            _ => {}
        }
    }

    /// Such programs, by session.
    pub(crate) fn laneless(&self) -> impl Iterator<Item = (SessionId, &Session, &Laneless)> {
        self.sessions.iter().filter_map(|(id, session)| match &session.kind {
            Kind::Laneless(program) => Some((*id, session, &**program)),
            _ => None,
        })
    }

    /// Asks such programs to give up the lanes that they have: those of a process, or all.
    pub(crate) fn revoke_laneless(&mut self, wanted: impl Fn(SessionId, u32) -> bool) {
        let told: Vec<SessionId> = self
            .laneless()
            .filter(|(id, session, _)| wanted(*id, session.peer.pid))
            .map(|(id, ..)| id)
            .collect();
        for session in told {
            self.exchange.revoke(Party { session, conn: ConnId(0) });
        }
    }

    /// Such programs for the tools: those of a process, or all.
    pub(crate) fn other_versions(&self, wanted: impl Fn(SessionId, u32) -> bool) -> Vec<OtherVersion> {
        let mut all: Vec<OtherVersion> = self
            .laneless()
            .filter(|(id, session, _)| wanted(*id, session.peer.pid))
            .map(|(_, session, program)| OtherVersion {
                pid: session.peer.pid,
                uid: session.peer.uid(),
                comm: program.comm.clone(),
                control: program.control,
                version: program.version,
                ours: VERSION,
                lanes: program.connections.map(|(lanes, _)| lanes),
                plain: program.connections.map(|(_, plain)| plain),
                reason: ReasonText::of(Reason::VersionDiffers),
            })
            .collect();
        all.sort_by_key(|other| other.pid);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_no_control_hears_its_own_version_if_it_is_the_last_of_these() {
        assert_eq!(heard_as(0, LAST_WITHOUT_CONTROL), Some((0, LAST_WITHOUT_CONTROL)));
        assert_eq!(heard_as(0, LAST_WITHOUT_CONTROL - 1), None);
        assert_eq!(heard_as(CONTROL + 1, VERSION + 1), Some((CONTROL, VERSION)));
        assert_eq!(heard_as(CONTROL, VERSION - 1), Some((CONTROL, VERSION)));
    }
}
