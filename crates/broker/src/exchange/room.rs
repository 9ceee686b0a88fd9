//! Whether there is room for a DMB: in the device, in its process's share, in its user's.
//!
//! A handshake needs two. Where each end took one as it came, a crowd at the limit would hold half of what
//! every handshake needs, and none would ever get through. So a match is made only where there is room for
//! both, and that room is promised to it.

use crate::ends::SessionId;
use crate::ism::{Held, IsmDevice};
use crate::policy::{Limits, Policy};
use shunpike_shm::lane::HEADER;
use shunpike_wire::{DmbSize, Reason};
use std::collections::HashMap;
use std::hash::Hash;

/// Whose DMB it is or will be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The process.
    pub session: SessionId,
    /// Its user.
    pub uid: u32,
}

/// DMBs that are promised and not registered yet.
pub struct Promises {
    /// What each of them will have by the current settings, bytes.
    ring: DmbSize,
    all: usize,
    sessions: HashMap<SessionId, usize>,
    users: HashMap<u32, usize>,
}

impl Promises {
    /// None; rings will be of this size.
    pub fn new(ring: DmbSize) -> Self {
        Self { ring, all: 0, sessions: HashMap::new(), users: HashMap::new() }
    }

    /// Rings will be of this size from now on.
    pub fn expect_rings_of(&mut self, ring: DmbSize) {
        self.ring = ring;
    }

    /// Promises a DMB. Errors: why there is no room for it.
    pub fn make(&mut self, holder: Holder, device: &dyn IsmDevice, policy: &Policy) -> Result<(), Reason> {
        self.room(holder, self.ring, device, policy)?;
        self.all += 1;
        *self.sessions.entry(holder.session).or_default() += 1;
        *self.users.entry(holder.uid).or_default() += 1;
        Ok(())
    }

    /// Takes a promise back: it is being kept, or no longer wanted.
    pub fn release(&mut self, holder: Holder) {
        self.all -= 1;
        release(&mut self.sessions, holder.session);
        release(&mut self.users, holder.uid);
    }

    /// Whether there is room for a DMB of this size besides those that are promised. Errors: why not.
    pub fn room(
        &self,
        holder: Holder,
        size: DmbSize,
        device: &dyn IsmDevice,
        policy: &Policy,
    ) -> Result<(), Reason> {
        if device.dmb_count() + self.all >= device.dmb_limit() {
            return Err(Reason::MaxDmb);
        }
        let fits = |held: Held, promised: usize, limits: &Limits| {
            let bytes = held.bytes + promised as u64 * memory(self.ring) + memory(size);
            held.dmbs + promised < limits.dmbs && bytes <= limits.bytes
        };
        let Holder { session, uid } = holder;
        let of_session = self.sessions.get(&session).copied().unwrap_or(0);
        let of_user = self.users.get(&uid).copied().unwrap_or(0);
        let fits = fits(device.held_by_session(session), of_session, &policy.process)
            && fits(device.held_by_user(uid), of_user, &policy.user);
        if fits { Ok(()) } else { Err(Reason::DmbLimit) }
    }

    /// How many are promised: two for each handshake that has not come to its DMBs.
    pub fn count(&self) -> usize {
        self.all
    }

    /// Whether these are the holders of all that is promised, each as often as it is.
    pub fn are(&self, holders: impl Iterator<Item = Holder>) -> bool {
        let mut counted = Self::new(self.ring);
        for Holder { session, uid } in holders {
            counted.all += 1;
            *counted.sessions.entry(session).or_default() += 1;
            *counted.users.entry(uid).or_default() += 1;
        }
        (counted.all, counted.sessions, counted.users)
            == (self.all, self.sessions.clone(), self.users.clone())
    }

    /// Whether nothing is promised.
    pub fn is_empty(&self) -> bool {
        self.all == 0 && self.sessions.is_empty() && self.users.is_empty()
    }
}

fn memory(size: DmbSize) -> u64 {
    (HEADER + size.bytes()) as u64
}

fn release<K: Eq + Hash>(counts: &mut HashMap<K, usize>, holder: K) {
    if let Some(count) = counts.get_mut(&holder) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&holder);
        }
    }
}
