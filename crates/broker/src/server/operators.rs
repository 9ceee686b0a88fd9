//! The operator's own door: who comes by it is heard in the midst of what others have the broker do.

use super::{LISTENER, OPERATORS, Server};
use crate::clock;
use crate::config::Config;
use crate::ends::SessionId;
use crate::runtime::{self, Place};
use crate::session::Door;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

/// Others are served for so long, and then it is looked whether the operator wants something.
const LOOK: Duration = Duration::from_millis(2);
/// Events that are served in one look.
const AT_ONCE: usize = 16;

/// A socket that only root and the broker's own user can connect to, and a set of its own for those who do.
pub(super) struct Operators {
    pub(super) listener: OwnedFd,
    set: OwnedFd,
    looked: Instant,
}

impl Operators {
    /// Where the broker serves others than its own user. It can do without.
    pub(super) fn new(config: &Config, place: &Place, epoll: &OwnedFd) -> Option<Self> {
        if config.private {
            return None;
        }
        // One of which the kernel or /proc does not say who it is would find nobody there.
        if !runtime::knows_operators() {
            tracing::info!(
                "no socket of the operator's own: the kernel (Linux 6.5) and /proc do not say who it is"
            );
            return None;
        }
        let made = place.listen_for_operator().map_err(|error| error.to_string()).and_then(|listener| {
            let within = |listener: &OwnedFd| {
                let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                epoll::add(&set, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
                epoll::add(epoll, &set, EventData::new_u64(OPERATORS), EventFlags::IN)?;
                Ok(set)
            };
            let set = within(&listener).map_err(|errno: Errno| errno.to_string())?;
            Ok(Self { listener, set, looked: clock::now() })
        });
        made.inspect_err(|error| tracing::warn!(error, "no socket of the operator's own")).ok()
    }
}

impl Server {
    /// The set in which sessions wait that came by this door.
    pub(super) fn set_of(&self, door: Door) -> &OwnedFd {
        match (door, &self.operators) {
            (Door::Operators, Some(operators)) => &operators.set,
            _ => &self.epoll,
        }
    }

    /// Serves the operator, if it is time to look.
    pub(super) fn look_at_operators(&mut self) {
        if self.operators.as_ref().is_some_and(|operators| clock::since(operators.looked) > LOOK) {
            self.serve_operators();
        }
    }

    pub(super) fn serve_operators(&mut self) {
        let Some(operators) = &mut self.operators else { return };
        operators.looked = clock::now();
        let mut events = Vec::with_capacity(AT_ONCE);
        let room = rustix::buffer::spare_capacity(&mut events);
        // Failure leaves them for the next look.
        let _ = epoll::wait(&operators.set, room, Some(&Timespec::default()));
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(Door::Operators),
                id => self.serve_session(SessionId(id), event.flags),
            }
            self.deliver();
        }
    }
}
