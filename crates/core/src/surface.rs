//! All that a program may ask of a TCP socket, by name, and what becomes of a lane then.
//!
//! One table: the hooks of setsockopt(2) and getsockopt(2), and nominations, decide by [`of_option`]; `docs/sockets.md` is made from
//! it; a test fails where a name of the kernel's headers ([`linux.txt`](surface/linux.txt)) has no row.

#[cfg(test)]
mod calls;
mod options;

use shunpike_wire::Reason;

/// What a name can do to a lane, and what we do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// Nothing to do: it does not reach the stream's bytes nor how a program waits for them, or the kernel does it whichever way
    /// the bytes go.
    Nothing,
    /// It has its effect on a lane, by this piece of our code.
    Same(&'static str),
    /// Back to TCP for good where the option is in force, set before the lane or during it
    /// ([`crate::conn::option_set`], [`crate::options::barred`]).
    Tcp(Unset),
    /// The descriptor goes to the kernel or to other code with all that is unread, for this reason, by this piece of our code.
    Back(Reason, &'static str),
    /// The kernel does what it does on TCP, which a lane does not feel: COMPLIANCE.md says so.
    Differs,
    /// Not possible to see from inside the process.
    Unseen,
}

/// How it is known that an option is not in force.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unset {
    /// getsockopt() gives no more than this number.
    UpTo(i64),
    /// getsockopt(SO_GET_FILTER) knows of no filter.
    NoFilter,
}

/// Names that are treated alike.
pub struct Row<Name: 'static> {
    /// Options and flags with their number; calls, fcntl commands and ioctls without.
    pub names: &'static [Name],
    /// What becomes of a lane.
    pub does: Does,
    /// What the names do to a stream, or why there is nothing to do.
    pub note: &'static str,
}

/// An option or a flag.
pub type Numbered = (&'static str, i64);

const fn row<Name>(names: &'static [Name], does: Does, note: &'static str) -> Row<Name> {
    Row { names, does, note }
}

/// Options have smaller numbers than this.
const NUMBERS: usize = 128;
/// The levels that have a table: SOL_SOCKET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP.
const LEVELS: [(i32, &[Row<Numbered>]); 4] = [
    (libc::SOL_SOCKET, self::options::SOCKET),
    (libc::IPPROTO_IP, self::options::IP),
    (libc::IPPROTO_IPV6, self::options::IPV6),
    (libc::IPPROTO_TCP, self::options::TCP),
];

static OPTIONS: [[Does; NUMBERS]; 4] = {
    let mut all = [[Does::Nothing; NUMBERS]; 4];
    let mut level = 0;
    while level < LEVELS.len() {
        let rows = LEVELS[level].1;
        let mut at = 0;
        while at < rows.len() {
            let mut name = 0;
            while name < rows[at].names.len() {
                all[level][rows[at].names[name].1 as usize] = rows[at].does;
                name += 1;
            }
            at += 1;
        }
        level += 1;
    }
    all
};

/// What an option does. Of other levels, and of numbers that the table does not know (netfilter's tables, multicast routing): nothing.
pub fn of_option(level: i32, name: i32) -> Does {
    let Some(level) = LEVELS.iter().position(|(known, _)| *known == level) else { return Does::Nothing };
    usize::try_from(name).ok().and_then(|name| OPTIONS[level].get(name)).copied().unwrap_or(Does::Nothing)
}

/// The options that keep a connection on TCP, as (level, name, how it is known that they are not in force).
pub fn barring() -> impl Iterator<Item = (i32, i32, Unset)> {
    LEVELS.iter().zip(&OPTIONS).flat_map(|((level, _), options)| {
        options.iter().enumerate().filter_map(move |(name, does)| match does {
            Does::Tcp(unset) => Some((*level, name as i32, *unset)),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests;
