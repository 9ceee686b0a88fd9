//! What became of connections: the last thousand events of each user.
//!
//! An event is of a connection, which has two ends. Who asks sees those of which `ss` would show an end, and of these the ends that it
//! would show. What a program wrote in its arena is shown, and decides nothing else.

use crate::clock;
use crate::ends::Party;
use crate::exchange::News;
use crate::listing::Events;
use crate::reply::json;
use crate::report::{self, Event, EventEnd, ReasonText};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

/// Events of one user that are kept.
const OF_USER: usize = 1000;
/// Users whose events are kept: of one more, those of whom nothing was heard for longest are forgotten.
const USERS: usize = 64;
/// Network namespaces of one user of which is known that they had events that are not kept.
const NAMESPACES: usize = 64;
/// Events in one answer. Who asks for more asks again.
const ANSWER: usize = 1000;

/// What happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// Both ends have each other's memory.
    Opened,
    /// The connection goes on on TCP.
    Revoked,
    /// It got no lane.
    FellBack,
    /// It ended on its lanes.
    Closed,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Opened => "opened",
            Kind::Revoked => "revoked",
            Kind::FellBack => "fell back",
            Kind::Closed => "closed",
        }
    }
}

/// Whose an end is: who sees it is told by that.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Whose {
    /// The user.
    pub user: Option<u32>,
    /// The network namespace.
    pub netns: Option<u64>,
}

/// An end of a connection, as it was when it had a session.
#[derive(Clone, Debug)]
pub struct End {
    /// Who sees it.
    pub whose: Whose,
    /// What is shown.
    pub shown: EventEnd,
}

/// Whose events are asked for.
#[derive(Copy, Clone, Debug)]
pub enum Of {
    /// All.
    Everybody,
    /// This user.
    User(u32),
}

#[derive(Debug)]
struct Noted {
    /// Among all events: it would tell a user how many others have.
    number: u64,
    at: SystemTime,
    kind: Kind,
    /// How long: opened, since it was matched; else since it was opened, or matched.
    after: Option<Duration>,
    /// Why, and which end said so.
    why: Option<(u32, Option<String>)>,
    ends: Vec<End>,
}

/// A connection that has a match.
struct Pair {
    parties: [Party; 2],
    ends: [Option<End>; 2],
    matched: Instant,
    opened: Option<Instant>,
    has_left: [bool; 2],
    /// Whether what became of it was noted.
    is_told: bool,
}

/// Events of one user, in order.
#[derive(Default)]
struct Log {
    /// With their numbers among the user's.
    events: VecDeque<(u64, Rc<Noted>)>,
    /// The number of the last one.
    last: u64,
    /// The number before the first one that there was.
    base: u64,
    /// The last ones that are not kept any more, of whom.
    dropped: Vec<(u64, Whose)>,
}

impl Log {
    /// That of a user who may have been forgotten: its numbers are above all that a log of before can have had. They are the clock's, as the
    /// number of all events would tell the user how many others have.
    fn anew() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let base = since.map_or(0, |since| since.as_micros() as u64);
        Self { last: base, base, ..Self::default() }
    }

    /// One more, and what is not kept for its sake.
    fn push(&mut self, user: u32, event: &Rc<Noted>) -> Option<Rc<Noted>> {
        self.last += 1;
        self.events.push_back((self.last, Rc::clone(event)));
        if self.events.len() <= OF_USER {
            return None;
        }
        let (number, event) = self.events.pop_front()?;
        for End { whose, .. } in event.ends.iter().filter(|end| end.shown.uid == user) {
            self.dropped.retain(|(_, other)| other != whose);
            self.dropped.push((number, *whose));
        }
        // As each comes last when it is heard of, those of which nothing was heard for longest.
        self.dropped.drain(..self.dropped.len().saturating_sub(NAMESPACES));
        Some(event)
    }

    /// Those after a number, in order: among `all` events', or the user's.
    fn after(&self, after: u64, all: bool) -> impl DoubleEndedIterator<Item = (u64, &Rc<Noted>)> {
        let number = move |(own, event): &(u64, Rc<Noted>)| if all { event.number } else { *own };
        let from = self.events.partition_point(|entry| number(entry) <= after);
        self.events.range(from..).map(move |entry| (number(entry), &entry.1))
    }
}

/// All of it.
#[derive(Default)]
pub struct Journal {
    /// Of the last event.
    number: u64,
    logs: HashMap<u32, Log>,
    /// Whether a log was thrown away for the sake of others.
    has_forgotten: bool,
    /// The last event that is in no log any more.
    gone: u64,
    /// Matched connections, by either end.
    pairs: BTreeMap<Party, Rc<RefCell<Pair>>>,
}

impl Journal {
    fn note(
        &mut self,
        kind: Kind,
        after: Option<Duration>,
        why: Option<(u32, Option<String>)>,
        ends: Vec<End>,
    ) {
        let mut users: Vec<u32> = ends.iter().map(|end| end.shown.uid).collect();
        users.dedup();
        if users.is_empty() {
            return;
        }
        self.number += 1;
        let noted = Noted { number: self.number, at: SystemTime::now(), kind, after, why, ends };
        let event = Rc::new(noted);
        for user in users {
            let new = || if self.has_forgotten { Log::anew() } else { Log::default() };
            let gone = self.logs.entry(user).or_insert_with(new).push(user, &event);
            gone.into_iter().for_each(|event| self.let_go(event));
        }
        while self.logs.len() > USERS {
            let last = |log: &Log| log.events.back().map_or(0, |(_, event)| event.number);
            // Root's stay, however many others there are.
            let others = self.logs.iter().filter(|(user, _)| **user != 0);
            let quiet = others.min_by_key(|(_, log)| last(log)).map(|(user, _)| *user);
            let Some(quiet) = quiet else { break };
            let log = self.logs.remove(&quiet).unwrap_or_default();
            log.events.into_iter().for_each(|(_, event)| self.let_go(event));
            self.has_forgotten = true;
        }
    }

    /// What a log has let go of, where no other one has it.
    fn let_go(&mut self, event: Rc<Noted>) {
        if let Some(event) = Rc::into_inner(event) {
            self.gone = self.gone.max(event.number);
        }
    }

    /// The events after a number of which `sees` is true of an end, in order and each once.
    fn later(
        &self,
        of: Of,
        after: u64,
        sees: impl Fn(&Whose) -> bool,
    ) -> impl Iterator<Item = (u64, &Rc<Noted>)> {
        let (all, user) = match of {
            Of::Everybody => (true, None),
            Of::User(user) => (false, self.logs.get(&user)),
        };
        let everybodys = self.logs.values().filter(|_| all);
        let mut logs: Vec<_> = everybodys.map(|log| log.after(after, all).peekable()).collect();
        let merged = std::iter::from_fn(move || {
            let number = logs.iter_mut().filter_map(|log| log.peek().map(|(number, _)| *number)).min()?;
            logs.iter_mut().filter_map(|log| log.next_if(|(other, _)| *other == number)).last()
        });
        let users = user.into_iter().flat_map(move |log| log.after(after, all));
        merged.chain(users).filter(move |(_, event)| event.is_of(&sees))
    }

    /// The number before the last `lately` of those.
    fn before_last(&self, of: Of, since: u64, lately: usize, sees: impl Fn(&Whose) -> bool) -> u64 {
        let logs: Vec<&Log> = match of {
            Of::Everybody => self.logs.values().collect(),
            Of::User(user) => self.logs.get(&user).into_iter().collect(),
        };
        let all = matches!(of, Of::Everybody);
        if logs.iter().map(|log| log.events.len()).sum::<usize>() <= lately {
            return since;
        }
        let newest_first = |log| Log::after(log, since, all).rev().filter(|(_, event)| event.is_of(&sees));
        let mut logs: Vec<_> = logs.into_iter().map(|log| newest_first(log).peekable()).collect();
        let mut before = u64::MAX;
        for _ in 0..lately {
            let newest = logs.iter_mut().filter_map(|log| log.peek().map(|(number, _)| *number)).max();
            let Some(newest) = newest else { return since };
            for log in &mut logs {
                let _ = log.next_if(|(other, _)| *other == newest);
            }
            before = newest - 1;
        }
        before
    }

    /// Where an answer begins that is of the events after number `since` of which `sees` is true of an end: of the last `lately` of them,
    /// and of no more than [`ANSWER`]. `None`: of nobody.
    pub fn begin(&self, of: Option<Of>, since: u64, lately: usize, sees: impl Fn(&Whose) -> bool) -> Events {
        let (mut since, mut last, mut is_missing) = (since, 0, false);
        match of {
            None => {}
            Some(Of::Everybody) => (last, is_missing) = (self.number, self.gone > since),
            Some(Of::User(user)) => match self.logs.get(&user) {
                Some(log) => {
                    // The user was forgotten meanwhile; or the broker is another, or its clock was set back.
                    let is_forgotten = since > log.last || (1..log.base).contains(&since);
                    since = if is_forgotten { 0 } else { since };
                    let was_later = |(number, whose): &(u64, Whose)| *number > since && sees(whose);
                    is_missing = is_forgotten || log.dropped.iter().any(was_later);
                    last = log.last;
                }
                None => is_missing = since > 0,
            },
        }
        let after = of.map_or(since, |of| self.before_last(of, since, lately, sees));
        Events { after, left: ANSWER, last, is_missing, began: false }
    }

    /// The next piece of an answer, a JSON text of [`report::Events`], with no more than `most` of them; and whether it is the last.
    /// `broker`: its life.
    pub fn next(
        &self,
        list: &mut Events,
        of: Option<Of>,
        most: usize,
        sees: impl Fn(&Whose) -> bool,
        broker: &str,
    ) -> (String, bool) {
        let (mut text, mut count, most) = (String::new(), 0, most.min(list.left));
        let later = of.into_iter().flat_map(|of| self.later(of, list.after, &sees));
        let (last, mut reached) = (list.last, list.after);
        for (number, event) in later.take_while(|(number, _)| *number <= last).take(most) {
            let is_first = !std::mem::replace(&mut list.began, true);
            text.push_str(if is_first { "{\"events\":[" } else { "," });
            text.push_str(&json(&event.report(number, &sees)));
            (count, reached) = (count + 1, number);
        }
        list.after = reached;
        list.left -= count;
        if count == most && list.left > 0 {
            return (text, false);
        }
        // Those that are not to be seen are not to be asked for again.
        let next = if list.left == 0 { reached } else { last };
        let rest = report::Events {
            events: Vec::new(),
            next,
            is_missing: list.is_missing,
            broker: broker.to_owned(),
        };
        let rest = json(&rest);
        text.push_str(if list.began {
            rest.strip_prefix("{\"events\":[").unwrap_or_default()
        } else {
            &rest
        });
        (text, true)
    }
}

/// What the journal asks of the sessions.
pub trait Ends {
    /// An end, while its program has a session.
    fn describe(&self, party: Party) -> Option<End>;
    /// Why an end has left its match, where that is not that its connection has ended.
    fn reason_of_leaving(&self, party: Party) -> Option<u32>;
}

impl Journal {
    /// Notes what the exchange has decided. Before anything of the sessions that it tells of is gone.
    pub fn take(&mut self, news: News, ends: &impl Ends) {
        match news {
            News::Matched { client, server } => {
                let pair = Rc::new(RefCell::new(Pair {
                    parties: [client, server],
                    ends: [ends.describe(client), ends.describe(server)],
                    matched: clock::now(),
                    opened: None,
                    has_left: [false; 2],
                    is_told: false,
                }));
                self.pairs.insert(client, Rc::clone(&pair));
                self.pairs.insert(server, pair);
            }
            News::Opened { party } => {
                let Some(pair) = self.pairs.get(&party).map(Rc::clone) else { return };
                let mut pair = pair.borrow_mut();
                pair.opened = Some(clock::now());
                let after = Some(clock::since(pair.matched));
                self.note(Kind::Opened, after, None, pair.all());
            }
            News::Refused { parties, reason } => {
                let ends = parties.into_iter().filter_map(|party| ends.describe(party)).collect();
                self.note(Kind::FellBack, None, Some((reason.code(), None)), ends);
            }
            News::Declined { by, reason } => {
                let Some(pair) = self.pairs.get(&by).map(Rc::clone) else { return };
                self.end_of_pair(&pair, by, Kind::FellBack, Some(reason));
            }
            News::Left { party } => {
                let Some(pair) = self.pairs.remove(&party) else { return };
                let is_open = {
                    let mut pair = pair.borrow_mut();
                    let side = pair.side(party);
                    pair.has_left[side] = true;
                    pair.opened.is_some()
                };
                match ends.reason_of_leaving(party) {
                    Some(reason) => {
                        let kind = if is_open { Kind::Revoked } else { Kind::FellBack };
                        self.end_of_pair(&pair, party, kind, Some(reason));
                    }
                    // The other end may have had a reason, and say so yet.
                    None if pair.borrow().has_left == [true; 2] => {
                        self.end_of_pair(&pair, party, Kind::Closed, None);
                    }
                    None => {}
                }
            }
        }
    }

    fn end_of_pair(&mut self, pair: &Rc<RefCell<Pair>>, by: Party, kind: Kind, reason: Option<u32>) {
        let mut pair = pair.borrow_mut();
        if std::mem::replace(&mut pair.is_told, true) {
            return;
        }
        let side = ["client", "server"][pair.side(by)];
        let after = Some(clock::since(pair.opened.unwrap_or(pair.matched)));
        self.note(kind, after, reason.map(|reason| (reason, Some(side.to_owned()))), pair.all());
    }

    /// The ends whose matches it keeps.
    pub fn matched(&self) -> impl Iterator<Item = &Party> {
        self.pairs.keys()
    }
}

impl Pair {
    fn side(&self, party: Party) -> usize {
        usize::from(self.parties[0] != party)
    }

    fn all(&self) -> Vec<End> {
        self.ends.iter().flatten().cloned().collect()
    }
}

impl Noted {
    fn is_of(&self, sees: impl Fn(&Whose) -> bool) -> bool {
        self.ends.iter().any(|end| sees(&end.whose))
    }

    /// `number`: what it is called for who asks.
    fn report(&self, number: u64, sees: impl Fn(&Whose) -> bool) -> Event {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Event {
            number,
            time_ms: since.as_millis() as u64,
            event: self.kind.name().to_owned(),
            after_us: self.after.map(|after| after.as_micros() as u64),
            reason: self.why.as_ref().map(|(code, _)| ReasonText::of_code(*code)),
            by: self.why.as_ref().and_then(|(_, by)| by.clone()),
            ends: self.ends.iter().filter(|end| sees(&end.whose)).map(|end| end.shown.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(uid: u32) -> End {
        let shown = EventEnd {
            role: "client".into(),
            pid: 1,
            uid,
            comm: "prog".into(),
            local: String::new(),
            remote: String::new(),
        };
        End { whose: Whose { user: Some(uid), netns: Some(1) }, shown }
    }

    /// The whole answer.
    fn after(
        journal: &Journal,
        of: Of,
        since: u64,
        lately: usize,
        sees: impl Fn(&Whose) -> bool,
    ) -> report::Events {
        let (mut list, mut text) = (journal.begin(Some(of), since, lately, &sees), String::new());
        loop {
            let (piece, is_last) = journal.next(&mut list, Some(of), 64, &sees, "");
            assert!(piece.matches("\"time_ms\"").count() <= 64, "in turns");
            text.push_str(&piece);
            if is_last {
                return serde_json::from_str(&text).expect("an answer");
            }
        }
    }

    /// What a user is told of: numbers, and whether there are others.
    fn told(journal: &Journal, user: u32, since: u64) -> (Vec<u64>, bool) {
        let found = after(journal, Of::User(user), since, usize::MAX, |whose| *whose == end(user).whose);
        (found.events.iter().map(|event| event.number).collect(), found.is_missing)
    }

    #[test]
    fn each_user_has_the_last_thousand_whatever_others_do() {
        let mut journal = Journal::default();
        journal.note(Kind::Opened, None, None, vec![end(7)]);
        for _ in 0..10 * OF_USER {
            journal.note(Kind::FellBack, None, None, vec![end(8)]);
        }
        journal.note(Kind::Opened, None, None, vec![end(7)]);
        assert_eq!(told(&journal, 7, 0), (vec![1, 2], false), "as if there were no others");
        let (theirs, is_missing) = told(&journal, 8, 0);
        assert_eq!((theirs.len(), theirs[0], is_missing), (OF_USER, 9001, true));
        let last = after(&journal, Of::User(8), 0, 3, |_| true).events;
        assert_eq!(last.iter().map(|event| event.number).collect::<Vec<_>>(), [9998, 9999, 10_000]);
        assert_eq!(told(&journal, 8, 9_999), (vec![10_000], false));
        assert_eq!(told(&journal, 8, 10_000), (vec![], false));
        assert_eq!(after(&journal, Of::User(7), 0, usize::MAX, |_| true).next, 2);
        assert_eq!(told(&journal, 9, 0), (vec![], false));
    }

    /// Which of the logs was looked at first used to decide.
    #[test]
    fn what_is_missing_is_what_the_asker_would_have_seen() {
        for _ in 0..20 {
            let mut journal = Journal::default();
            for _ in 0..2 * OF_USER {
                journal.note(Kind::FellBack, None, None, vec![end(8)]);
            }
            journal.note(Kind::Opened, None, None, vec![end(7), end(8)]);
            assert_eq!(told(&journal, 7, 0), (vec![1], false));
            assert!(told(&journal, 8, 0).1 && !told(&journal, 8, OF_USER as u64 + 1).1);
            let all = |since| after(&journal, Of::Everybody, since, usize::MAX, |_| true).is_missing;
            assert!(all(0) && all(OF_USER as u64) && !all(OF_USER as u64 + 1));
            // What went was of another namespace.
            let elsewhere = |whose: &Whose| whose.netns == Some(2);
            assert!(!after(&journal, Of::User(8), 0, usize::MAX, elsewhere).is_missing);
        }
    }

    #[test]
    fn a_user_who_was_forgotten_is_told_so() {
        let mut journal = Journal::default();
        journal.note(Kind::Opened, None, None, vec![end(7)]);
        for user in 100..200 {
            journal.note(Kind::Opened, None, None, vec![end(user)]);
        }
        assert_eq!(told(&journal, 7, 1), (vec![], true));
        // However many events there are by the next look.
        for count in 1..=10 {
            journal.note(Kind::Opened, None, None, vec![end(7)]);
            let (numbers, is_missing) = told(&journal, 7, 5);
            assert!(is_missing && numbers.len() == count, "{numbers:?}");
        }
        let (numbers, _) = told(&journal, 7, 0);
        assert_eq!(told(&journal, 7, numbers[8]), (vec![numbers[9]], false));
    }

    #[test]
    fn however_many_users_there_are_those_that_were_heard_of_last_are_kept() {
        let mut journal = Journal::default();
        journal.note(Kind::Opened, None, None, vec![end(0)]);
        for user in 1..10 * USERS as u32 {
            journal.note(Kind::Opened, None, None, vec![end(user)]);
            journal.note(Kind::Opened, None, None, vec![end(1_000_000)]);
        }
        assert!(journal.logs.len() <= USERS);
        let is_kept = |user| journal.logs.contains_key(&user);
        assert!(is_kept(1_000_000) && is_kept(0) && !is_kept(1));
    }

    #[test]
    fn a_connection_of_two_users_is_in_both_logs_and_told_of_once_to_who_sees_all() {
        let mut journal = Journal::default();
        journal.note(Kind::Opened, None, None, vec![end(7), end(8)]);
        journal.note(Kind::Opened, None, None, vec![end(7), end(7)]);
        assert_eq!(after(&journal, Of::Everybody, 0, usize::MAX, |_| true).events.len(), 2);
        assert_eq!(told(&journal, 8, 0), (vec![1], false));
        let report = journal.logs[&8].events[0].1.report(1, |whose| whose.user == Some(8));
        assert_eq!(report.ends.len(), 1, "the other end is another user's");
    }
}
