//! How far an answer has come that is made as it is read: nothing of it is kept.

use crate::ends::SessionId;
use shunpike_shm::arena::BLOCKS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A list, by the question.
pub enum Listing {
    /// `ss`
    Connections(Connections),
    /// `explain`
    Explanations(Explanations),
    /// `linkgroup`
    LinkGroups(LinkGroups),
    /// `events`
    Events(Events),
    /// `revoke`
    Revocation(Revocation),
}

/// Connections of all programs.
#[derive(Default)]
pub struct Connections {
    /// Arenas to come, by the first session of each.
    pub arenas: VecDeque<SessionId>,
    /// The next block of the first of them.
    pub block: u32,
    /// How many were listed of each user's arenas.
    pub listed: BTreeMap<u32, usize>,
    /// Users who have more.
    pub cut_off: BTreeSet<u32>,
}

impl Connections {
    /// Of one user: twice as many as one arena has.
    pub const OF_USER: usize = 2 * BLOCKS;
    /// Of all: whoever asks holds them in memory, a KiB each.
    pub const ALL: usize = 8 * BLOCKS;
    /// Of one user in any case.
    pub const AT_LEAST: usize = 64;

    /// One more, in an arena of this user's. False: there are as many as are told of.
    pub fn enter(&mut self, user: u32) -> bool {
        let all: usize = self.listed.values().sum();
        let of_user = self.listed.entry(user).or_default();
        let has_room = *of_user < Self::OF_USER && (all < Self::ALL || *of_user < Self::AT_LEAST);
        if has_room {
            *of_user += 1;
        } else {
            self.cut_off.insert(user);
        }
        has_room
    }
}

/// Where a connection of a process was found.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its descriptor.
    pub fd: u32,
    /// The first session of its arena.
    pub arena: SessionId,
    /// Its block.
    pub block: u32,
}

/// A search for the connections of a process, or for the one of a descriptor of it.
pub struct Search {
    /// The process.
    pub pid: u32,
    /// The descriptor.
    pub fd: Option<u32>,
    /// Arenas to come, by the first session of each.
    pub arenas: VecDeque<SessionId>,
    /// The next block of the first of them.
    pub block: u32,
    /// Blocks that may still be looked at.
    pub left: usize,
    /// What was found.
    pub found: Vec<Place>,
    /// How many of these, the first ones, are in arenas that the process itself uses.
    pub own: usize,
    /// Whether there are some that the asker may know of, and not see.
    pub is_hidden: bool,
}

/// Connections of a process, with what is to be said of each.
pub struct Explanations {
    /// They are found first;
    pub search: Search,
    /// then told of in the order of their descriptors.
    pub is_sorted: bool,
    /// Of those found, how many were looked at.
    pub looked: usize,
    /// Whether one was listed.
    pub began: bool,
}

/// Connections of a process that are to go back to TCP.
pub struct Revocation {
    /// They are found first;
    pub search: Search,
    /// ... that is over,
    pub is_found: bool,
    /// and so many of those found were looked at again, and asked.
    pub looked: usize,
    /// Sessions that were asked as a whole.
    pub sessions: BTreeSet<SessionId>,
}

/// Link groups.
#[derive(Default)]
pub struct LinkGroups {
    /// Sessions to come.
    pub sessions: VecDeque<SessionId>,
    /// The last group of the first of them that was listed.
    pub last: u32,
    /// Whether one was listed.
    pub began: bool,
}

/// Events.
pub struct Events {
    /// Those after this number are to come,
    pub after: u64,
    /// ... and so many at most,
    pub left: usize,
    /// ... up to this number, the last one when the question came.
    pub last: u64,
    /// Whether others came before them that are not kept.
    pub is_missing: bool,
    /// Whether one was listed.
    pub began: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_part_of_a_list_has_an_end_and_so_has_the_whole() {
        let mut list = Connections::default();
        let mut fill = |user| (0..=Connections::OF_USER).take_while(|_| list.enter(user)).count();
        assert_eq!([1, 2, 3, 4, 5].map(&mut fill), [65536, 65536, 65536, 65536, 64]);
        assert!(list.cut_off.into_iter().eq([1, 2, 3, 4, 5]));
    }
}
