//! Link groups: the connections of one pair of processes, client and server.
//!
//! A group has a link page (news bits and sleep words, `shunpike_shm::pages::LinkPage`) and a slot in it for
//! each of its connections. A full group is followed by another one. Groups live until one of their two
//! processes goes, so that the next connection of the same pair costs no mapping.

use crate::ends::SessionId;
use crate::foreign::Shared;
use shunpike_shm::RegionError;
use shunpike_shm::pages::PAGE;
use shunpike_shm::region;
use shunpike_wire::session::MAX_CONNS_PER_LGR;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

/// Names a link group; never used twice in a broker's life.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// A connection's place in a link group.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seat {
    /// The group.
    pub link: LinkId,
    /// The slot, below [`MAX_CONNS_PER_LGR`].
    pub slot: u16,
}

/// A group as the tools show it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Its name.
    pub id: LinkId,
    /// The process whose connections it opened; writes side 0 of the link page.
    pub client: SessionId,
    /// The process that accepted; writes side 1.
    pub server: SessionId,
    /// Connections in it.
    pub conns: u32,
    /// Whether both processes have been told of it.
    pub known: bool,
}

struct Link {
    client: SessionId,
    server: SessionId,
    users: [u32; 2],
    page: Rc<Shared>,
    slots: [u64; MAX_CONNS_PER_LGR as usize / 64],
    conns: u32,
    /// Whether the client's and the server's side have been told.
    known: [bool; 2],
}

/// All link groups.
#[derive(Default)]
pub struct Links {
    links: HashMap<LinkId, Link>,
    pairs: HashMap<(SessionId, SessionId), Vec<LinkId>>,
    /// The groups of each session.
    of: HashMap<SessionId, BTreeSet<LinkId>>,
    /// How many each user is in.
    users: HashMap<u32, usize>,
    last: u32,
}

/// Groups that processes of one user are in: each is a page of memory, and a descriptor of the broker's.
const OF_USER: usize = 16384;

impl Links {
    /// Seats a connection of two processes, of these users, in a group of this pair that has fewer than `max_conns`, or in a new one.
    /// Errors: no memory or descriptor for a link page; `None`: a user is in as many groups as it may.
    pub fn seat(
        &mut self,
        client: SessionId,
        server: SessionId,
        users: [u32; 2],
        max_conns: u32,
    ) -> Result<Seat, Option<RegionError>> {
        let of_pair = self.pairs.get(&(client, server)).map_or(&[][..], Vec::as_slice);
        let roomy =
            of_pair.iter().copied().find(|id| self.links.get(id).is_some_and(|l| l.conns < max_conns));
        let id = match roomy {
            Some(id) => id,
            None => {
                if users.iter().any(|user| self.users.get(user).is_some_and(|count| *count >= OF_USER)) {
                    return Err(None);
                }
                let page = Rc::new(Shared::from(region::create("shunpike-link", PAGE).map_err(Some)?));
                let id = self.free_id();
                self.pairs.entry((client, server)).or_default().push(id);
                for session in [client, server] {
                    self.of.entry(session).or_default().insert(id);
                }
                for user in users {
                    *self.users.entry(user).or_default() += 1;
                }
                let link = Link { client, server, users, page, slots: [0; 4], conns: 0, known: [false; 2] };
                self.links.insert(id, link);
                id
            }
        };
        let slot = self.links.get_mut(&id).and_then(Link::take).expect("below max_conns, a slot is free");
        Ok(Seat { link: id, slot })
    }

    /// A number that no group has. They are given anew when all were, which takes a user days.
    fn free_id(&mut self) -> LinkId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = LinkId(self.last);
            if !self.links.contains_key(&id) {
                return id;
            }
        }
    }

    /// Frees a seat. Not before both ends have left the connection: each knows it by its slot.
    pub fn leave(&mut self, seat: Seat) {
        if let Some(link) = self.links.get_mut(&seat.link) {
            let word = &mut link.slots[usize::from(seat.slot) / 64];
            let bit = 1 << (seat.slot % 64);
            debug_assert!(*word & bit != 0, "{seat:?} left twice");
            *word &= !bit;
            link.conns -= 1;
        }
    }

    /// The link page, if `side` has not been given it yet: from now on it has.
    pub fn introduce(&mut self, id: LinkId, side: u8) -> Option<Rc<Shared>> {
        let link = self.links.get_mut(&id)?;
        let known = &mut link.known[usize::from(side)];
        if std::mem::replace(known, true) {
            return None;
        }
        Some(Rc::clone(&link.page))
    }

    /// Ends all groups of a session, and returns those that another process was told of, with that process.
    pub fn end_session(&mut self, session: SessionId) -> Vec<(LinkId, SessionId)> {
        let mut bereft = Vec::new();
        for id in self.of.remove(&session).unwrap_or_default() {
            let Some(link) = self.links.remove(&id) else { continue };
            self.pairs.remove(&(link.client, link.server));
            for user in link.users {
                if let Some(count) = self.users.get_mut(&user) {
                    *count -= 1;
                    if *count == 0 {
                        self.users.remove(&user);
                    }
                }
            }
            for (member, known) in [(link.client, link.known[0]), (link.server, link.known[1])] {
                if member == session {
                    continue;
                }
                if let Some(links) = self.of.get_mut(&member) {
                    links.remove(&id);
                    if links.is_empty() {
                        self.of.remove(&member);
                    }
                }
                if known {
                    bereft.push((id, member));
                }
            }
        }
        bereft
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The groups of a session after the one of number `last`, in the order of their making.
    pub fn of(&self, session: SessionId, last: u32) -> impl Iterator<Item = LinkView> {
        let after = self.of.get(&session).map(|ids| ids.range((Excluded(LinkId(last)), Unbounded)));
        after.into_iter().flatten().filter_map(|id| Some(view(*id, self.links.get(id)?)))
    }

    /// All groups, in no order.
    pub fn all(&self) -> impl Iterator<Item = LinkView> {
        self.links.iter().map(|(id, link)| view(*id, link))
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.pairs.is_empty() && self.of.is_empty() && self.users.is_empty()
    }
}

fn view(id: LinkId, link: &Link) -> LinkView {
    let (client, server) = (link.client, link.server);
    LinkView { id, client, server, conns: link.conns, known: link.known == [true; 2] }
}

impl Link {
    fn take(&mut self) -> Option<u16> {
        let (index, word) = self.slots.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        self.conns += 1;
        Some((index * 64) as u16 + bit as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn a_full_group_is_followed_by_another() {
        let mut links = Links::default();
        let seats: Vec<_> = (0..40).map(|_| links.seat(A, B, [7, 8], 16).unwrap()).collect();
        assert_eq!(links.of(A, 0).map(|l| l.conns).collect::<Vec<_>>(), [16, 16, 8]);
        let distinct: std::collections::HashSet<_> = seats.iter().collect();
        assert_eq!(distinct.len(), 40);
        links.leave(seats[3]);
        assert_eq!(links.seat(A, B, [7, 8], 16).unwrap(), seats[3]);
        assert!(links.all().all(|l| (l.client, l.server) == (A, B)));
        assert_eq!(links.of(B, 1).map(|l| l.id.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn every_slot_of_a_group_can_be_used() {
        let mut links = Links::default();
        let slots: Vec<_> = (0..256).map(|_| links.seat(A, B, [7, 8], 256).unwrap().slot).collect();
        assert_eq!(slots, (0..256).collect::<Vec<u16>>());
        assert_eq!(links.len(), 1);
    }

    #[test]
    fn opposite_directions_are_different_groups() {
        let mut links = Links::default();
        let there = links.seat(A, B, [7, 8], 255).unwrap();
        let back = links.seat(B, A, [7, 8], 255).unwrap();
        assert_ne!(there.link, back.link);
    }

    #[test]
    fn a_user_is_in_so_many_groups() {
        let mut links = Links::default();
        links.seat(A, B, [7, 8], 255).unwrap();
        assert_eq!((links.users[&7], links.users[&8]), (1, 1));
        links.users.insert(8, OF_USER);
        assert!(matches!(links.seat(B, A, [8, 7], 255), Err(None)));
        links.seat(A, B, [7, 8], 255).expect("in a group that is there");
        links.seat(A, SessionId(3), [7, 9], 255).expect("of others");
        links.users.insert(8, 1);
        links.end_session(A);
        assert!(links.is_empty());
    }

    #[test]
    fn a_side_is_introduced_once() {
        let mut links = Links::default();
        let seat = links.seat(A, B, [7, 8], 255).unwrap();
        assert!(links.introduce(seat.link, 0).is_some());
        assert!(links.introduce(seat.link, 0).is_none());
        assert!(links.introduce(seat.link, 1).is_some());
        let own = links.seat(A, A, [7, 8], 255).unwrap();
        assert!(links.introduce(own.link, 0).is_some());
        assert!(links.introduce(own.link, 1).is_some(), "each side of a process's link to itself");
    }

    #[test]
    fn groups_end_with_either_process() {
        let mut links = Links::default();
        let seat = links.seat(A, B, [7, 8], 255).unwrap();
        links.seat(B, A, [7, 8], 255).unwrap();
        links.introduce(seat.link, 1);
        assert_eq!(links.end_session(A), [(seat.link, B)], "only where B was told");
        assert!(links.is_empty());
        links.leave(seat);
    }
}
