//! The life of a link of a group (RFC 7609, 3.5 and 4.5), without I/O or clock.
//!
//! | event | Down | Connecting | Confirming | Up | Testing | Fenced |
//! |---|---|---|---|---|---|---|
//! | Add | Connecting: connect | - | - | - | - | - |
//! | Connected | - | Confirming: confirm | - | - | - | - |
//! | Confirm | - | Up: confirmed | Up: confirmed | - | - | - |
//! | Heard | - | - | - | - | Up | - |
//! | Silent | - | Fenced: close, delete | Fenced: close, delete | Testing: test | Fenced: close, delete | - |
//! | Lost | - | Fenced: close, delete | Fenced: close, delete | Fenced: close, delete | Fenced: close, delete | - |
//! | Deleted | - | Down: close, delete, move | Down: close, delete, move | Down: close, delete, move | Down: close, delete, move | Down: move |
//!
//! A `-` leaves it as it is, and asks for nothing. In Up and Testing it carries connections.
//!
//! *An end that gives a link up closes its endpoint first and speaks then.* So any DELETE LINK of the peer's says that nothing of ours lands
//! through that link any more, be it a request or an answer, and each end says it once for each life of a link. Only then do connections move
//! (`move`), and bytes are written again that may have been written already: a late write would otherwise land over those of the next turn
//! of the ring. models/fabric.pml has this, and shows what breaks without it.

/// Where a link stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// There is none.
    Down,
    /// The endpoints are being connected.
    Connecting,
    /// They are; the peer has yet to answer through it (CONFIRM LINK).
    Confirming,
    /// It carries connections.
    Up,
    /// It does, but nothing has come for long, and the peer was asked through it (TEST LINK).
    Testing,
    /// This end has closed it; the other end has yet to say so (DELETE LINK).
    Fenced,
}

/// What happens to it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// Both ends want it (ADD LINK).
    Add,
    /// The engine has connected the endpoints.
    Connected,
    /// CONFIRM LINK came through it: at the client the request, at the server the answer.
    Confirm,
    /// Anything came through it.
    Heard,
    /// Nothing came for the time that this standing allows.
    Silent,
    /// The engine has lost it, or it is to go.
    Lost,
    /// The peer has closed its end (DELETE LINK, request or answer).
    Deleted,
}

/// What is to be done, in this order.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The client connects; the server waits for it.
    Connect,
    /// The server asks through it (CONFIRM LINK); the client waits.
    Confirm,
    /// The client answers through it; connections may use it.
    Confirmed,
    /// Ask through it (TEST LINK).
    Test,
    /// Close the endpoint.
    Close,
    /// Say so to the peer, with what has come (DELETE LINK).
    Delete,
    /// Its connections go to another link.
    Move,
}

impl Standing {
    /// Whether it carries connections.
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Up | Self::Testing)
    }

    /// The table above.
    pub fn on(self, event: LinkEvent) -> (Self, &'static [Step]) {
        use Standing::{Confirming, Connecting, Down, Fenced, Testing, Up};
        match (event, self) {
            (LinkEvent::Add, Down) => (Connecting, &[Step::Connect]),
            (LinkEvent::Connected, Connecting) => (Confirming, &[Step::Confirm]),
            (LinkEvent::Confirm, Connecting | Confirming) => (Up, &[Step::Confirmed]),
            (LinkEvent::Heard, Testing) => (Up, &[]),
            (LinkEvent::Silent, Up) => (Testing, &[Step::Test]),
            (LinkEvent::Silent, Connecting | Confirming | Testing)
            | (LinkEvent::Lost, Connecting | Confirming | Up | Testing) => {
                (Fenced, &[Step::Close, Step::Delete])
            }
            (LinkEvent::Deleted, Connecting | Confirming | Up | Testing) => {
                (Down, &[Step::Close, Step::Delete, Step::Move])
            }
            (LinkEvent::Deleted, Fenced) => (Down, &[Step::Move]),
            _ => (self, &[]),
        }
    }
}

#[cfg(test)]
impl Standing {
    /// In the order of the table.
    pub(crate) const ALL: [Self; 6] =
        [Self::Down, Self::Connecting, Self::Confirming, Self::Up, Self::Testing, Self::Fenced];
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [LinkEvent; 7] = [
        LinkEvent::Add,
        LinkEvent::Connected,
        LinkEvent::Confirm,
        LinkEvent::Heard,
        LinkEvent::Silent,
        LinkEvent::Lost,
        LinkEvent::Deleted,
    ];

    #[test]
    fn each_pair_of_state_and_event_is_as_the_table_has_it() {
        let rows = include_str!("link.rs").lines().filter_map(|line| line.strip_prefix("//! |"));
        let rows: Vec<Vec<&str>> =
            rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
        assert_eq!(rows[0][1..], Standing::ALL.map(|standing| format!("{standing:?}")));
        assert_eq!(rows.len(), EVENTS.len() + 2);
        for (row, event) in rows[2..].iter().zip(EVENTS) {
            assert_eq!(row[0], format!("{event:?}"));
            for (cell, from) in row[1..].iter().zip(Standing::ALL) {
                let (to, steps) = from.on(event);
                let steps: Vec<_> = steps.iter().map(|step| format!("{step:?}").to_lowercase()).collect();
                let said = match steps.as_slice() {
                    [] if to == from => "-".to_owned(),
                    [] => format!("{to:?}"),
                    steps => format!("{to:?}: {}", steps.join(", ")),
                };
                assert_eq!(*cell, said, "{event:?} in {from:?}");
            }
        }
    }

    /// All sequences of up to seven events: the endpoint is closed once for each life, and before that is said; connections move only from a
    /// link that both ends have closed.
    #[test]
    fn an_end_closes_before_it_speaks_and_speaks_once() {
        fn walk(standing: Standing, closed: bool, said: bool, depth: usize) {
            if depth == 0 {
                return;
            }
            for event in EVENTS {
                let (to, steps) = standing.on(event);
                let (mut closed, mut said) = (closed, said);
                for step in steps {
                    match step {
                        Step::Connect => (closed, said) = (false, false),
                        Step::Close => assert!(!std::mem::replace(&mut closed, true), "closed twice"),
                        Step::Delete => assert!(closed && !std::mem::replace(&mut said, true)),
                        Step::Move => assert!(closed && said && event == LinkEvent::Deleted),
                        Step::Confirm | Step::Confirmed | Step::Test => assert!(!closed),
                    }
                }
                assert_eq!(
                    closed,
                    matches!(to, Standing::Fenced | Standing::Down),
                    "{event:?} in {standing:?}"
                );
                walk(to, closed, said, depth - 1);
            }
        }
        walk(Standing::Down, true, true, 7);
    }
}
