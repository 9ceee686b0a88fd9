//! Who may be a peer of whom, and what one process and one user may take.

mod file;
mod group;
mod source;

pub use file::{Configuration, PolicyError, load};
pub use source::{SYSTEM_FILE, Source};

use crate::report;
use crate::sockopt;
use rustix::fd::BorrowedFd;
use shunpike_shm::lane::{HEADER, MAX_CLASS};
use std::path::PathBuf;

/// The largest DMB, bytes: the least that a limit of memory can be.
const LEAST_BYTES: u64 = (HEADER as u64) + (16 << 10 << MAX_CLASS);

/// A group of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// As configured.
    pub name: String,
    /// As the kernel knows it.
    pub gid: u32,
}

/// Whose processes may be the two ends of a lane. Nothing here makes two sockets one connection: that
/// remains the kernel's word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peers {
    /// Two processes of one user.
    SameUser,
    /// These, and two users that are both members of one of these groups.
    Groups(Vec<Group>),
    /// Everybody.
    Any,
}

/// What one process, or one user, may have at a time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Sessions: of a user one for each process, of a process one and what exec leaves behind.
    pub sessions: usize,
    /// DMBs registered, or only held by their peer any more.
    pub dmbs: usize,
    /// Bytes that these could come to. Their pages come as rings fill, and are charged to whoever fills them,
    /// so that the built-in policy has no such limit.
    pub bytes: u64,
    /// Nominations in a second, and at once after a quiet second.
    pub nominations: u32,
}

/// What the operator has decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The file that it was read from; `None`: the built-in one.
    pub file: Option<PathBuf>,
    /// Who may be a peer of whom.
    pub peers: Peers,
    /// The line of the file that says so, from 1; `None`: none does.
    pub peers_line: Option<usize>,
    /// Mode of the socket.
    pub socket_mode: u32,
    /// Group of the socket; the broker's own without one.
    pub socket_group: Option<Group>,
    /// What one process may have.
    pub process: Limits,
    /// What all processes of one user may have together.
    pub user: Limits,
}

impl Policy {
    /// The built-in policy of a broker for one user: all is that user's.
    pub fn private() -> Self {
        let process = Limits { sessions: 8, dmbs: 16384, bytes: u64::MAX, nominations: 10_000 };
        let user = Limits { sessions: usize::MAX, dmbs: usize::MAX, bytes: u64::MAX, nominations: u32::MAX };
        Self {
            file: None,
            peers: Peers::SameUser,
            peers_line: None,
            socket_mode: 0o600,
            socket_group: None,
            process,
            user,
        }
    }

    /// The built-in policy of a system-wide broker: lanes within one user, and no user takes more than half
    /// of what there is.
    pub fn system_wide(max_sessions: usize, max_dmbs: usize) -> Self {
        let user = Limits {
            sessions: max_sessions.div_ceil(2),
            dmbs: max_dmbs.div_ceil(2),
            bytes: u64::MAX,
            nominations: 20_000,
        };
        Self { socket_mode: 0o666, user, ..Self::private() }
    }

    /// Groups of the process at the other end of a session's socket, as far as policy asks for any: of one that has many (NGROUPS_MAX,
    /// include/uapi/linux/limits.h) those that it names.
    pub fn groups_of(&self, socket: BorrowedFd<'_>) -> Vec<u32> {
        const MOST: usize = 65536;
        const FEW: usize = 64;
        let Peers::Groups(named) = &self.peers else { return sockopt::peer_groups(socket, FEW) };
        let mut groups = sockopt::peer_groups(socket, MOST);
        if groups.len() > FEW {
            groups.retain(|group| named.iter().any(|named| named.gid == *group));
            groups.shrink_to_fit();
        }
        groups
    }

    /// Whether two users' processes may be the two ends of a lane.
    pub fn permits(&self, one: &Identity, other: &Identity) -> bool {
        let same = one.user().is_some() && one.user() == other.user();
        same || match &self.peers {
            Peers::SameUser => false,
            Peers::Groups(groups) => {
                groups.iter().any(|group| one.is_member(group.gid) && other.is_member(group.gid))
            }
            Peers::Any => true,
        }
    }

    /// What keeps two users apart, and the line to change so that they are joined.
    pub fn how_to_join(&self) -> String {
        let word = self.word();
        let then = "then 'shunpike policy reload'; or run both ends as one user, or leave it on TCP (docs/policy.md says \
                    what joining them means)";
        match (&self.file, self.peers_line) {
            (Some(file), Some(line)) => {
                let file = file.display();
                format!(
                    "policy is {word} ({file}, line {line}): to join users, write allow = \"any\" in that line, {then}"
                )
            }
            (Some(file), None) => {
                let file = file.display();
                format!(
                    "policy is {word} (built in, as {file} says nothing of it): to join users, add the two lines [peers] and \
                     allow = \"any\" there, {then}"
                )
            }
            (None, _) => format!(
                "policy is {word} (built in): to join users, write the two lines [peers] and allow = \"any\" into {SYSTEM_FILE} (or \
                 the file that --config names), {then}"
            ),
        }
    }

    /// The word that the file has for who may be a peer of whom.
    fn word(&self) -> &'static str {
        match &self.peers {
            Peers::SameUser => "same-user",
            Peers::Groups(_) => "groups",
            Peers::Any => "any",
        }
    }

    /// For the tools.
    pub fn report(&self) -> report::Policy {
        let limits = |limits: &Limits| report::Limits {
            sessions: (limits.sessions != usize::MAX).then_some(limits.sessions as u64),
            dmbs: (limits.dmbs != usize::MAX).then_some(limits.dmbs as u64),
            bytes: (limits.bytes != u64::MAX).then_some(limits.bytes),
            nominations_per_second: (limits.nominations != u32::MAX).then_some(limits.nominations),
        };
        report::Policy {
            file: self.file.as_ref().map(|path| path.display().to_string()),
            peers: self.word().to_owned(),
            line: self.peers_line,
            groups: match &self.peers {
                Peers::Groups(groups) => groups.iter().map(|group| group.name.clone()).collect(),
                _ => Vec::new(),
            },
            socket_mode: format!("{:04o}", self.socket_mode),
            socket_group: self.socket_group.as_ref().map(|group| group.name.clone()),
            process: limits(&self.process),
            user: limits(&self.user),
        }
    }
}

/// Who a session is, by the kernel's word when it was connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// User, as this broker's user namespace names it: for limits.
    pub uid: u32,
    /// Groups, the effective one and the supplementary ones.
    pub groups: Vec<u32>,
    /// What the kernel says in the place of users and groups that this user namespace has no name for.
    pub unmapped: (u32, u32),
}

impl Identity {
    /// A user of this namespace, in no group.
    pub fn of_user(uid: u32) -> Self {
        Self { uid, groups: Vec::new(), unmapped: (u32::MAX, u32::MAX) }
    }

    /// The user; `None` where all that is known is that it is none of ours: two of these may be two users.
    pub fn user(&self) -> Option<u32> {
        (self.uid != self.unmapped.0).then_some(self.uid)
    }

    fn is_member(&self, gid: u32) -> bool {
        gid != self.unmapped.1 && self.groups.contains(&gid)
    }
}

/// What the kernel says in the place of users and groups without a name in our user namespace; in the
/// initial one all have names.
pub fn unmapped() -> (u32, u32) {
    let complete = |map: &str| {
        let text = std::fs::read_to_string(map).unwrap_or_default();
        text.split_whitespace().eq(["0", "0", "4294967295"])
    };
    let overflow = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim_end().parse().unwrap_or(65534)
    };
    let uid = if complete("/proc/self/uid_map") { u32::MAX } else { overflow("overflowuid") };
    let gid = if complete("/proc/self/gid_map") { u32::MAX } else { overflow("overflowgid") };
    (uid, gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(uid: u32, groups: &[u32]) -> Identity {
        Identity { groups: groups.to_vec(), ..Identity::of_user(uid) }
    }

    fn policy(peers: Peers) -> Policy {
        Policy { peers, ..Policy::system_wide(8, 8) }
    }

    #[test]
    fn one_user_always_and_others_by_choice() {
        let groups = Peers::Groups(vec![
            Group { name: "web".to_owned(), gid: 50 },
            Group { name: "cache".to_owned(), gid: 60 },
        ]);
        let (root, alice, bob, carol) =
            (member(0, &[0]), member(1000, &[50]), member(1001, &[7, 50]), member(1002, &[60]));
        for (peers, with_bob, with_carol) in
            [(Peers::SameUser, false, false), (groups, true, false), (Peers::Any, true, true)]
        {
            let policy = policy(peers);
            assert!(policy.permits(&alice, &member(1000, &[])), "{policy:?}");
            assert_eq!(policy.permits(&alice, &bob), with_bob, "{policy:?}");
            assert_eq!(policy.permits(&bob, &carol), with_carol, "members of two groups: {policy:?}");
            assert_eq!(policy.permits(&root, &alice), with_carol, "root is a user as others: {policy:?}");
        }
    }

    #[test]
    fn users_without_a_name_are_not_one_user() {
        let unknown = || Identity { uid: 65534, groups: vec![65534], unmapped: (65534, 65534) };
        assert!(!policy(Peers::SameUser).permits(&unknown(), &unknown()));
        let nogroup = Peers::Groups(vec![Group { name: "nogroup".to_owned(), gid: 65534 }]);
        assert!(!policy(nogroup).permits(&unknown(), &unknown()));
        assert!(policy(Peers::Any).permits(&unknown(), &unknown()));
    }
}
