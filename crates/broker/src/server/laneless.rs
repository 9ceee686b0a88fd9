//! Programs whose library speaks another version of the lanes' protocol.

use super::{End, Server};
use crate::clock;
use crate::ends::{Party, SessionId};
use crate::laneless::{Laneless, heard_as, nominated};
use crate::session::{Kind, Session};
use shunpike_shm::pages::SessionPage;
use shunpike_shm::published::Published;
use shunpike_wire::Reason;
use shunpike_wire::session::{CONTROL, ConnId, FromBroker, ToBroker, VERSION};
use std::rc::Rc;

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
        let fds = vec![page_fd, self.knobs_for(&comm)];
        let session = self.sessions.get_mut(&id).ok_or(End)?;
        let (pid, uid) = (session.peer.pid, session.peer.uid());
        if let Some(times) = self.told.other_versions.happened(clock::now()) {
            let ours = VERSION;
            tracing::warn!(
                pid,
                uid,
                comm,
                control,
                version,
                ours,
                times,
                "another version: it gets no lanes"
            );
        }
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

    /// Asks such programs to give up the lanes that they have: those of a process, or all.
    pub(crate) fn revoke_laneless(&mut self, wanted: impl Fn(SessionId, u32) -> bool) {
        let told: Vec<SessionId> = self
            .sessions
            .laneless()
            .filter(|(id, session, _)| wanted(*id, session.peer.pid))
            .map(|(id, ..)| id)
            .collect();
        for session in told {
            self.exchange.revoke(Party { session, conn: ConnId(0) });
        }
    }
}
