//! The life of a connection end: where it stands with the broker, and what each event makes of that. No I/O and no clock.
//!
//! | event | Watched | Nominated | Shaking | Open | Stays | Given | Closed |
//! |---|---|---|---|---|---|---|---|
//! | Nominate | Nominated | - | - | - | - | - | - |
//! | AskAgain | - | Watched | - | - | - | - | - |
//! | Match | - | Shaking | - | - | - | - | - |
//! | Open | Open | Open | Open | Open | - | - | - |
//! | Keep | Open | Open | Open | Open | - | - | - |
//! | End | Watched | Watched | Watched | Watched | - | - | - |
//! | GiveUp | Stays | Stays | Stays | Stays | - | - | - |
//! | Bar | Stays | Stays | Stays | Stays | Stays | Stays | - |
//! | Give | Given | Given | Given | Given | - | - | - |
//! | TakeBack | - | - | - | - | - | Watched | - |
//! | Close | Closed | Closed | Closed | Closed | Closed | Closed | Closed |
//!
//! A `-` leaves it as it is. `Give` may come at any moment, and without the session's lock: from a child after fork. So whatever its parent's
//! broker says later finds Given, and nothing leads from there to a lane but `TakeBack`. models/lifecycle.pml has this table, too.

use core::sync::atomic::{AtomicU8, Ordering};

/// Where a connection stands with the broker.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// On TCP; its bytes are counted.
    Watched = 0,
    /// The broker has our nomination.
    Nominated = 1,
    /// The CLC handshake is under way.
    Shaking = 2,
    /// At least one direction is, or was just now, on a lane.
    Open = 3,
    /// Stays on TCP for good.
    Stays = 4,
    /// Other programs have it, too: on TCP until they have let go of it.
    Given = 5,
    /// Closed by the program.
    Closed = 6,
}

/// What happens to it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The broker is given our nomination.
    Nominate,
    /// The broker wants to be asked once more.
    AskAgain,
    /// The broker has found the other end: the handshake begins.
    Match,
    /// Both ends have agreed: there are lanes.
    Open,
    /// The handshake failed, but the peer has begun to send on a lane: it is read to its end.
    Keep,
    /// A nomination, a handshake or lanes are over.
    End,
    /// They are, and it was tried often enough.
    GiveUp,
    /// A lane cannot do what the program wants.
    Bar,
    /// Another program gets it.
    Give,
    /// The other programs have let go of it.
    TakeBack,
    /// The program closes it.
    Close,
}

/// What an event has made of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Where it stood.
    pub from: Phase,
    /// Where it stands now.
    pub to: Phase,
}

impl Step {
    /// Whether the event was one for a connection that stood there.
    pub fn is_taken(self) -> bool {
        self.from != self.to
    }

    /// Whether it left a nomination or a handshake behind, of which the session is to forget.
    pub fn leaves_a_handshake(self) -> bool {
        self.is_taken() && self.from.is_on_the_way()
    }
}

impl Phase {
    const ALL: [Self; 7] =
        [Self::Watched, Self::Nominated, Self::Shaking, Self::Open, Self::Stays, Self::Given, Self::Closed];

    /// Whether the broker, or the peer, has yet to answer.
    pub fn is_on_the_way(self) -> bool {
        matches!(self, Self::Nominated | Self::Shaking)
    }

    /// Whether no event of the session's leads to a lane any more.
    pub fn is_left(self) -> bool {
        matches!(self, Self::Stays | Self::Given)
    }

    /// The table above.
    pub const fn on(self, event: Event) -> Self {
        use Phase::{Closed, Given, Nominated, Open, Shaking, Stays, Watched};
        match (event, self) {
            (_, Closed) | (Event::Close, _) => Closed,
            (Event::Bar, _) => Stays,
            (Event::TakeBack, Given) | (Event::AskAgain, Nominated) => Watched,
            (_, Stays | Given) => self,
            (Event::Nominate, Watched) => Nominated,
            (Event::Match, Nominated) => Shaking,
            (Event::Open | Event::Keep, _) => Open,
            (Event::End, _) => Watched,
            (Event::GiveUp, _) => Stays,
            (Event::Give, _) => Given,
            (Event::Nominate | Event::AskAgain | Event::Match | Event::TakeBack, _) => self,
        }
    }
}

const PHASE: u8 = 7;
/// It has been on a lane.
const OPENED: u8 = 8;
/// A lane closed, and what follows from it is not done yet.
const UNSETTLED: u8 = 16;
/// The sender is to end its lane, too, once the one towards us is read.
const BOTH_END: u8 = 32;
/// The broker was lent the descriptor: the kernel's socket may outlive the program's close().
const DESCRIPTOR_LENT: u8 = 64;
/// The program has shut down its reading.
const READ_OUT: u8 = 128;

/// The word of a connection end. Private to the processes that share it; written here only.
#[repr(transparent)]
pub struct Lifecycle(AtomicU8);

impl Lifecycle {
    /// A connection is new. Nobody else has it.
    pub(crate) fn begin(&self) {
        self.0.store(Phase::Watched as u8, Ordering::Relaxed);
    }

    /// Where it stands.
    #[inline]
    pub fn phase(&self) -> Phase {
        let word = self.0.load(Ordering::Relaxed) & PHASE;
        Phase::ALL.get(usize::from(word)).copied().unwrap_or(Phase::Closed)
    }

    /// Whether it stands there.
    #[inline]
    pub fn is(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Relaxed) & PHASE == phase as u8
    }

    /// Takes `event`. What was written before it is seen by who finds the new phase with a call of this: AcqRel pairs with itself.
    pub fn on(&self, event: Event) -> Step {
        let mut step = Step { from: Phase::Closed, to: Phase::Closed };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            let from = Phase::ALL.get(usize::from(word & PHASE)).copied().unwrap_or(Phase::Closed);
            step = Step { from, to: from.on(event) };
            let flags = match event {
                // What a lane before had to end is over.
                Event::Nominate => word & !(PHASE | BOTH_END),
                // Also where a child gave the connection away meanwhile.
                Event::Open => word & !(PHASE | BOTH_END) | OPENED,
                _ => word & !PHASE,
            };
            Some(flags | step.to as u8)
        });
        step
    }

    fn has(&self, flag: u8) -> bool {
        self.0.load(Ordering::Relaxed) & flag != 0
    }

    /// Whether it has been on a lane.
    #[inline]
    pub fn has_been_open(&self) -> bool {
        self.has(OPENED)
    }

    /// Whether a lane closed, and what follows from it is not done yet.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.has(UNSETTLED)
    }

    /// A lane closed. Release: who settles it finds the half on TCP; pairs with the Acquire of its mode there.
    pub fn unsettle(&self) {
        self.0.fetch_or(UNSETTLED, Ordering::Release);
    }

    /// What follows from that is done, or begins. AcqRel: pairs with itself and with `unsettle`, so that one who finds it settled finds what
    /// that was done for.
    pub fn settle(&self) {
        self.0.fetch_and(!UNSETTLED, Ordering::AcqRel);
    }

    /// Whether the other direction's lane is to end with the one towards us.
    pub fn ends_both(&self) -> bool {
        self.has(BOTH_END)
    }

    /// The one towards us was asked to end, and neither would come back alone.
    pub fn end_both(&self) {
        self.0.fetch_or(BOTH_END, Ordering::Relaxed);
    }

    /// Whether the program has shut down its reading: it gets no lane any more. TCP shows that as the stream's end, while the peer goes on.
    pub fn has_ended_reading(&self) -> bool {
        self.has(READ_OUT)
    }

    /// shutdown() with SHUT_RD or SHUT_RDWR. AcqRel: the receive lock, taken after it, tells who grants a lane.
    pub fn end_reading(&self) {
        self.0.fetch_or(READ_OUT, Ordering::AcqRel);
    }

    /// Whether the broker was ever lent the descriptor.
    pub fn was_lent(&self) -> bool {
        self.has(DESCRIPTOR_LENT)
    }

    /// The broker is about to be lent it.
    pub fn lend(&self) {
        self.0.fetch_or(DESCRIPTOR_LENT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 11] = [
        Event::Nominate,
        Event::AskAgain,
        Event::Match,
        Event::Open,
        Event::Keep,
        Event::End,
        Event::GiveUp,
        Event::Bar,
        Event::Give,
        Event::TakeBack,
        Event::Close,
    ];

    /// The rows of the first table in `text`, whose lines begin with `mark`: cells without blanks.
    fn table(text: &'static str, mark: &str) -> Vec<Vec<&'static str>> {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix(mark)).map(str::trim);
        let rows =
            lines.skip_while(|line| !line.starts_with("| event")).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }

    fn at(phase: Phase) -> Lifecycle {
        Lifecycle(AtomicU8::new(phase as u8))
    }

    #[test]
    fn each_pair_of_state_and_event_is_as_the_table_has_it() {
        let rows = table(include_str!("lifecycle.rs"), "//!");
        let states: Vec<_> = Phase::ALL.iter().map(|phase| format!("{phase:?}")).collect();
        assert_eq!(rows[0][1..], states);
        assert_eq!(rows.len(), EVENTS.len() + 2);
        for (row, event) in rows[2..].iter().zip(EVENTS) {
            assert_eq!(row[0], format!("{event:?}"));
            for (cell, from) in row[1..].iter().zip(Phase::ALL) {
                let word = at(from);
                let step = word.on(event);
                let to = if *cell == "-" { format!("{from:?}") } else { (*cell).to_owned() };
                assert_eq!((format!("{:?}", step.to), step.from), (to, from), "{event:?} in {from:?}");
                assert!(word.is(step.to) && word.phase() == step.to);
            }
        }
    }

    #[test]
    fn the_model_has_the_same_table() {
        let model = table(include_str!("../../../models/lifecycle.pml"), "*");
        assert_eq!(model, table(include_str!("lifecycle.rs"), "//!"));
    }

    /// All sequences of up to five events from the beginning.
    #[test]
    fn what_is_given_away_or_barred_has_no_lane_before_it_is_back() {
        fn walk(word: u8, left: bool, depth: usize) {
            if depth == 0 {
                return;
            }
            for event in EVENTS {
                let life = Lifecycle(AtomicU8::new(word));
                let step = life.on(event);
                let is_left = (left || matches!(event, Event::Give | Event::GiveUp | Event::Bar))
                    && event != Event::TakeBack;
                assert!(!is_left || step.to.is_left() || step.to == Phase::Closed, "{step:?}");
                assert!(step.from != Phase::Closed || step.to == Phase::Closed);
                assert!(step.to != Phase::Shaking || matches!(step.from, Phase::Nominated | Phase::Shaking));
                let is_back = event == Event::TakeBack && step.to != Phase::Watched;
                walk(life.0.load(Ordering::Relaxed), is_left || left && is_back, depth - 1);
            }
        }
        walk(Phase::Watched as u8, false, 5);
    }

    #[test]
    fn flags_outlive_the_phases() {
        let life = at(Phase::Shaking);
        life.lend();
        life.end_reading();
        life.end_both();
        assert!(life.on(Event::Open).is_taken() && life.has_been_open() && !life.ends_both());
        life.unsettle();
        life.end_both();
        assert!(life.on(Event::End).is_taken() && life.is_unsettled() && life.ends_both() && life.was_lent());
        assert!(life.has_ended_reading());
        life.settle();
        assert!(!life.is_unsettled() && life.has_been_open() && life.is(Phase::Watched));
        assert!(life.on(Event::Nominate).is_taken() && !life.ends_both() && life.was_lent());
        assert!(!at(Phase::Watched).on(Event::Give).leaves_a_handshake());
        assert!(at(Phase::Shaking).on(Event::Give).leaves_a_handshake());
        life.begin();
        assert!(!life.was_lent() && !life.has_been_open() && !life.has_ended_reading());
        // A lane that could not be withdrawn is no lane that was opened.
        assert!(at(Phase::Shaking).on(Event::Keep).is_taken());
    }
}
