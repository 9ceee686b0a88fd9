//! Link groups: the connections of one pair of processes, client and server.
//!
//! A group has a link page (news bits and sleep words, `shunpike_shm::pages::LinkPage`) and a slot in it for
//! each of its connections. A full group is followed by another one. A group lives on without a connection, so that the next one of
//! the same pair costs no mapping: until one of its two processes goes, or has too many such, of which the oldest end for new ones.

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

/// A process at one side of a group.
#[derive(Copy, Clone, Debug)]
pub struct Side {
    /// Its session.
    pub session: SessionId,
    /// Its user.
    pub user: u32,
    /// Its completion queues: the other side is given a doorbell of each.
    pub queues: u8,
}

struct Link {
    /// The client's side and the server's.
    sides: [Side; 2],
    page: Rc<Shared>,
    slots: [u64; MAX_CONNS_PER_LGR as usize / 64],
    conns: u32,
    /// Whether each side has been told.
    known: [bool; 2],
    /// Where it stands among those without a connection, if it has none.
    idle: Option<u64>,
}

/// The groups of a session.
#[derive(Default)]
struct Own {
    groups: BTreeSet<LinkId>,
    /// Of these, those without a connection, the one that has been so longest first.
    idle: BTreeSet<(u64, LinkId)>,
    /// Descriptors that the process has of those.
    bells: usize,
}

/// All link groups.
#[derive(Default)]
pub struct Links {
    links: HashMap<LinkId, Link>,
    pairs: HashMap<(SessionId, SessionId), Vec<LinkId>>,
    of: HashMap<SessionId, Own>,
    /// How many each user is in.
    users: HashMap<u32, usize>,
    last: u32,
    last_idle: u64,
    /// Groups that have ended, of which nobody was told yet.
    gone: Vec<Gone>,
}

/// Groups that processes of one user are in: each is a page of memory, and a descriptor of the broker's.
const OF_USER: usize = 16384;
/// Descriptors that a process has of groups without a connection: half of the 128 that the library takes of a limit of 1024, so that
/// whoever was its peer once does not keep others from being so.
const IDLE: usize = 64;

/// A group that has ended, and a session that knows it.
pub type Gone = (LinkId, SessionId);

impl Links {
    /// Seats a connection of two processes in a group of this pair that has fewer than `max_conns`, or in a new one, for which those go
    /// that have been without a connection for longest.
    /// Errors: no memory or descriptor for a link page; `None`: a user is in as many groups as it may.
    pub fn seat(&mut self, client: Side, server: Side, max_conns: u32) -> Result<Seat, Option<RegionError>> {
        let of_pair = self.pairs.get(&(client.session, server.session)).map_or(&[][..], Vec::as_slice);
        let roomy =
            of_pair.iter().copied().find(|id| self.links.get(id).is_some_and(|l| l.conns < max_conns));
        let id = match roomy {
            Some(id) => id,
            None => self.add([client, server])?,
        };
        self.set_idle(id, false);
        let slot = self.links.get_mut(&id).and_then(Link::take).expect("below max_conns, a slot is free");
        Ok(Seat { link: id, slot })
    }

    /// A new group, without a connection yet.
    fn add(&mut self, sides: [Side; 2]) -> Result<LinkId, Option<RegionError>> {
        self.make_room(sides);
        let of_user = |side: &Side| self.users.get(&side.user).copied().unwrap_or(0);
        if sides.iter().any(|side| of_user(side) >= OF_USER) {
            return Err(None);
        }
        let page = Rc::new(Shared::from(region::create("shunpike-link", PAGE).map_err(Some)?));
        let id = self.free_id();
        self.pairs.entry((sides[0].session, sides[1].session)).or_default().push(id);
        for side in sides {
            self.of.entry(side.session).or_default().groups.insert(id);
            *self.users.entry(side.user).or_default() += 1;
        }
        let link = Link { sides, page, slots: [0; 4], conns: 0, known: [false; 2], idle: None };
        self.links.insert(id, link);
        Ok(id)
    }

    /// Groups that ended for new ones, for which who knows them is to be told. To be asked after each [`Self::seat`], whatever came of it.
    pub fn take_gone(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.gone)
    }

    /// Ends groups without a connection, so that one more of this kind fits.
    fn make_room(&mut self, sides: [Side; 2]) {
        for (side, other) in [(sides[0], sides[1]), (sides[1], sides[0])] {
            while let Some(own) = self.of.get(&side.session)
                && own.bells + usize::from(other.queues) > IDLE
                && let Some((_, id)) = own.idle.first().copied()
            {
                let knowing = self.end(id);
                self.gone.extend(knowing);
            }
        }
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
        let Some(link) = self.links.get_mut(&seat.link) else { return };
        let word = &mut link.slots[usize::from(seat.slot) / 64];
        let bit = 1 << (seat.slot % 64);
        debug_assert!(*word & bit != 0, "{seat:?} left twice");
        *word &= !bit;
        link.conns -= 1;
        if link.conns == 0 {
            self.set_idle(seat.link, true);
        }
    }

    /// Enters a group among those without a connection, or takes it out.
    fn set_idle(&mut self, id: LinkId, is_idle: bool) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let before = link.idle.take();
        if before.is_none() && !is_idle {
            return;
        }
        if is_idle {
            self.last_idle += 1;
            link.idle = Some(self.last_idle);
        }
        let [client, server] = link.sides;
        let others = [(client, server.queues), (server, client.queues)];
        for ((side, bells), known) in others.into_iter().zip(link.known) {
            let Some(own) = self.of.get_mut(&side.session) else { continue };
            // Who was not told of it has no descriptors of it: nor will be before it has a connection.
            let bells = if known { usize::from(bells) } else { 0 };
            if before.is_some_and(|at| own.idle.remove(&(at, id))) {
                own.bells -= bells;
            }
            if link.idle.is_some_and(|at| own.idle.insert((at, id))) {
                own.bells += bells;
            }
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

    /// Ends one of a session's groups, if there are any. Who else knows it is returned.
    pub fn end_one_of(&mut self, session: SessionId) -> Option<Option<Gone>> {
        let id = *self.of.get(&session)?.groups.first()?;
        Some(self.end(id).into_iter().find(|(_, other)| *other != session))
    }

    /// Ends a group. Returns who knows it.
    fn end(&mut self, id: LinkId) -> Vec<Gone> {
        self.set_idle(id, false);
        let Some(link) = self.links.remove(&id) else { return Vec::new() };
        let pair = (link.sides[0].session, link.sides[1].session);
        if let Some(of_pair) = self.pairs.get_mut(&pair) {
            of_pair.retain(|other| *other != id);
            if of_pair.is_empty() {
                self.pairs.remove(&pair);
            }
        }
        let mut knowing = Vec::new();
        for (side, known) in link.sides.into_iter().zip(link.known) {
            if let Some(own) = self.of.get_mut(&side.session) {
                own.groups.remove(&id);
                if own.groups.is_empty() {
                    self.of.remove(&side.session);
                }
            }
            if let Some(count) = self.users.get_mut(&side.user) {
                *count -= 1;
                if *count == 0 {
                    self.users.remove(&side.user);
                }
            }
            if known && !knowing.contains(&(id, side.session)) {
                knowing.push((id, side.session));
            }
        }
        knowing
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The groups of a session after the one of number `last`, in the order of their making.
    pub fn of(&self, session: SessionId, last: u32) -> impl Iterator<Item = LinkView> {
        let after = self.of.get(&session).map(|own| own.groups.range((Excluded(LinkId(last)), Unbounded)));
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
    let [client, server] = link.sides.map(|side| side.session);
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

    /// Of user 7 with one queue.
    fn side(session: SessionId) -> Side {
        Side { session, user: 7, queues: 1 }
    }

    fn seat(links: &mut Links, client: SessionId, server: SessionId, max_conns: u32) -> Seat {
        links.seat(side(client), side(server), max_conns).unwrap()
    }

    /// All groups of a session, and who else knows them.
    fn end(links: &mut Links, session: SessionId) -> Vec<Gone> {
        std::iter::from_fn(|| links.end_one_of(session)).flatten().collect()
    }

    #[test]
    fn a_full_group_is_followed_by_another() {
        let mut links = Links::default();
        let seats: Vec<_> = (0..40).map(|_| seat(&mut links, A, B, 16)).collect();
        assert_eq!(links.of(A, 0).map(|l| l.conns).collect::<Vec<_>>(), [16, 16, 8]);
        let distinct: std::collections::HashSet<_> = seats.iter().collect();
        assert_eq!(distinct.len(), 40);
        links.leave(seats[3]);
        assert_eq!(seat(&mut links, A, B, 16), seats[3]);
        assert!(links.all().all(|l| (l.client, l.server) == (A, B)));
        assert_eq!(links.of(B, 1).map(|l| l.id.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn every_slot_of_a_group_can_be_used() {
        let mut links = Links::default();
        let slots: Vec<_> = (0..256).map(|_| seat(&mut links, A, B, 256).slot).collect();
        assert_eq!(slots, (0..256).collect::<Vec<u16>>());
        assert_eq!(links.len(), 1);
    }

    #[test]
    fn opposite_directions_are_different_groups() {
        let mut links = Links::default();
        let there = seat(&mut links, A, B, 255);
        let back = seat(&mut links, B, A, 255);
        assert_ne!(there.link, back.link);
    }

    #[test]
    fn a_user_is_in_so_many_groups() {
        let mut links = Links::default();
        let of = |user, session| Side { session: SessionId(session), user, queues: 1 };
        links.seat(of(7, 1), of(8, 2), 255).unwrap();
        assert_eq!((links.users[&7], links.users[&8]), (1, 1));
        links.users.insert(8, OF_USER);
        assert!(matches!(links.seat(of(8, 2), of(7, 1), 255), Err(None)));
        links.seat(of(7, 1), of(8, 2), 255).expect("in a group that is there");
        links.seat(of(7, 1), of(9, 3), 255).expect("of others");
        links.users.insert(8, 1);
        end(&mut links, SessionId(1));
        assert!(links.is_empty());
    }

    #[test]
    fn a_side_is_introduced_once() {
        let mut links = Links::default();
        let link = seat(&mut links, A, B, 255).link;
        assert!(links.introduce(link, 0).is_some());
        assert!(links.introduce(link, 0).is_none());
        assert!(links.introduce(link, 1).is_some());
        let own = seat(&mut links, A, A, 255).link;
        assert!(links.introduce(own, 0).is_some());
        assert!(links.introduce(own, 1).is_some(), "each side of a process's link to itself");
    }

    #[test]
    fn groups_end_with_either_process() {
        let mut links = Links::default();
        let there = seat(&mut links, A, B, 255);
        seat(&mut links, B, A, 255);
        links.introduce(there.link, 1);
        assert_eq!(end(&mut links, A), [(there.link, B)], "only where B was told");
        assert!(links.is_empty());
        links.leave(there);
    }

    /// As of a server whose clients were many, each with one connection.
    #[test]
    fn groups_without_a_connection_go_for_new_ones() {
        let mut links = Links::default();
        let server = Side { queues: 2, ..side(A) };
        let client = |id| Side { queues: 4, ..side(SessionId(id)) };
        let of = |links: &mut Links, id| {
            let seat = links.seat(client(id), server, 255).unwrap();
            (seat, links.take_gone())
        };
        let seats: Vec<Seat> = (10..40).map(|id| of(&mut links, id).0).collect();
        let told = |links: &mut Links, seat: Seat| {
            assert!((0..2).all(|side| links.introduce(seat.link, side).is_some()));
        };
        seats.iter().for_each(|seat| told(&mut links, *seat));
        // Four descriptors each, of which 64 are kept.
        seats[1..].iter().for_each(|seat| links.leave(*seat));
        let (seat, gone) = of(&mut links, 40);
        let expected =
            seats[1..15].iter().zip(11..).flat_map(|(seat, id)| [(seat.link, SessionId(id)), (seat.link, A)]);
        assert_eq!(gone, expected.collect::<Vec<_>>(), "those that have been idle for longest");
        assert_eq!(of(&mut links, 10), (Seat { link: seats[0].link, slot: 1 }, vec![]), "in use");
        assert_eq!(of(&mut links, 39), (Seat { link: seats[29].link, slot: 0 }, vec![]), "in use again");
        told(&mut links, seat);
        links.leave(seat);
        let (last, gone) = of(&mut links, 41);
        assert!(gone.is_empty(), "there is room");
        // Also where there is no new one in the end.
        told(&mut links, last);
        links.leave(last);
        links.users.insert(7, OF_USER + 2);
        assert!(matches!(links.seat(client(42), server, 255), Err(None)));
        assert!(!links.take_gone().is_empty());
        let left = links.links.len() * 2;
        links.users.insert(7, left);
        end(&mut links, A);
        assert!(links.is_empty());
    }
}
