//! What the broker's limit of open files has room for.

use rustix::process::{Resource, getrlimit};

/// So many of each kind, for each of which descriptors are kept: together seven eighths of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// DMBs, of one descriptor: three eighths.
    pub dmbs: usize,
    /// Sessions, of four (its socket, arena, page, doorbells): a quarter.
    pub sessions: usize,
    /// Link groups, of one: a quarter.
    pub groups: usize,
}

impl Room {
    /// That of this process, which takes as many as its hard limit lets it (RLIMIT_NOFILE).
    pub fn ours() -> Self {
        let hard = getrlimit(Resource::Nofile).maximum;
        Self::of(hard.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)))
    }

    fn of(descriptors: usize) -> Self {
        Self { dmbs: descriptors / 8 * 3, sessions: descriptors / 16, groups: descriptors / 4 }
    }

    /// Link groups where there is one user, or several, of whom none takes more than half.
    pub fn most_groups(self, is_one_users: bool) -> Groups {
        let share = if is_one_users { self.groups } else { self.groups / 2 };
        Groups { all: self.groups, of_user: Groups::default().of_user.min(share) }
    }
}

/// How many link groups there may be: each is a page of memory, and a descriptor of the broker's.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Groups {
    /// In all.
    pub all: usize,
    /// That processes of one user are in.
    pub of_user: usize,
}

impl Default for Groups {
    fn default() -> Self {
        Self { all: usize::MAX, of_user: 16384 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_there_may_be_leaves_an_eighth() {
        for limit in [1024, 4096, 20_000, 1 << 20] {
            let Room { dmbs, sessions, groups } = Room::of(limit);
            assert!(dmbs + 4 * sessions + groups <= limit - limit / 8, "{limit}");
        }
        let unit = Room::of(1 << 20);
        assert!(unit.dmbs >= 32768 && unit.sessions >= 4096, "the unit's limit is none: {unit:?}");
        assert_eq!(unit.most_groups(false), Groups { all: 1 << 18, of_user: 16384 });
        assert_eq!(Room::of(160).most_groups(false), Groups { all: 40, of_user: 20 });
        assert_eq!(Room::of(160).most_groups(true), Groups { all: 40, of_user: 40 });
    }
}
