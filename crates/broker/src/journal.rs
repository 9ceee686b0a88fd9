//! What became of connections: the last thousand events of each user.
//!
//! An event is of a connection, which has two ends. Who asks sees those of which `ss` would show an end, and of these the ends that it
//! would show. What a program wrote in its arena is shown, and decides nothing else.

use crate::connections::reason_text;
use crate::exchange::News;
use crate::ism::{Party, SessionId};
use crate::query::{Reply, failure, json};
use crate::report::{Event, EventEnd, Events};
use crate::server::Server;
use shunpike_wire::Reason;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

/// Events of one user that are kept.
const OF_USER: usize = 1000;
/// Users whose events are kept: of one more, those of whom nothing was heard for longest are forgotten.
const USERS: usize = 64;
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

/// An end of a connection, as it was when it had a session.
#[derive(Clone, Debug)]
struct End {
    user: Option<u32>,
    netns: Option<u64>,
    shown: EventEnd,
}

#[derive(Debug)]
struct Noted {
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
    events: VecDeque<Rc<Noted>>,
    /// The last one that is not kept any more.
    dropped: u64,
}

/// All of it.
#[derive(Default)]
pub struct Journal {
    /// Of the last event.
    number: u64,
    logs: HashMap<u32, Log>,
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
        self.number += 1;
        let noted = Noted { number: self.number, at: SystemTime::now(), kind, after, why, ends };
        let event = Rc::new(noted);
        let mut users: Vec<u32> = event.ends.iter().map(|end| end.shown.uid).collect();
        users.dedup();
        for user in users {
            let log = self.logs.entry(user).or_default();
            log.events.push_back(Rc::clone(&event));
            if log.events.len() > OF_USER {
                log.dropped = log.events.pop_front().map_or(0, |event| event.number);
            }
        }
        while self.logs.len() > USERS {
            let last = |log: &Log| log.events.back().map_or(0, |event| event.number);
            // Root's stay, however many others there are.
            let others = self.logs.iter().filter(|(user, _)| **user != 0);
            let quiet = others.min_by_key(|(_, log)| last(log)).map(|(user, _)| *user);
            let Some(quiet) = quiet else { break };
            self.logs.remove(&quiet);
        }
    }

    /// Those after `since`, in order, of which `is_wanted` is true of an end; the first [`ANSWER`] of them, or with `lately` the last ones.
    /// And whether others came before them that are not kept.
    fn after(&self, since: u64, lately: usize, is_wanted: impl Fn(&End) -> bool) -> (Vec<Rc<Noted>>, bool) {
        let mut found = BTreeMap::new();
        let mut is_missing = false;
        for log in self.logs.values() {
            let from = log.events.partition_point(|event| event.number <= since);
            let wanted = log.events.range(from..).filter(|event| event.ends.iter().any(&is_wanted));
            let before = found.len();
            found.extend(wanted.map(|event| (event.number, Rc::clone(event))));
            is_missing |= log.dropped > since && found.len() > before;
        }
        let mut events: Vec<Rc<Noted>> = found.into_values().collect();
        events.drain(..events.len().saturating_sub(lately));
        events.truncate(ANSWER);
        (events, is_missing)
    }
}

impl Server {
    /// Notes what the exchange has decided. Before anything of the sessions that it tells of is gone.
    pub(crate) fn note_news(&mut self) {
        for news in std::mem::take(&mut self.exchange.news) {
            self.note_one(news);
        }
    }

    fn note_one(&mut self, news: News) {
        match news {
            News::Matched { client, server } => {
                let pair = Rc::new(RefCell::new(Pair {
                    parties: [client, server],
                    ends: [self.describe(client), self.describe(server)],
                    matched: Instant::now(),
                    opened: None,
                    has_left: [false; 2],
                    is_told: false,
                }));
                self.journal.pairs.insert(client, Rc::clone(&pair));
                self.journal.pairs.insert(server, pair);
            }
            News::Opened { party } => {
                let Some(pair) = self.journal.pairs.get(&party).map(Rc::clone) else { return };
                let mut pair = pair.borrow_mut();
                pair.opened = Some(Instant::now());
                let after = Some(pair.matched.elapsed());
                self.journal.note(Kind::Opened, after, None, pair.all());
            }
            News::Refused { parties, reason } => {
                let ends = parties.into_iter().filter_map(|party| self.describe(party)).collect();
                self.journal.note(Kind::FellBack, None, Some((reason.code(), None)), ends);
            }
            News::Declined { by, reason } => {
                let Some(pair) = self.journal.pairs.get(&by).map(Rc::clone) else { return };
                self.end_of_pair(&pair, by, Kind::FellBack, Some(reason));
            }
            News::Left { party } => {
                let Some(pair) = self.journal.pairs.remove(&party) else { return };
                let is_open = {
                    let mut pair = pair.borrow_mut();
                    let side = pair.side(party);
                    pair.has_left[side] = true;
                    pair.opened.is_some()
                };
                match self.reason_of_leaving(party) {
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

    /// Whether it keeps matches that there are, and no others. Errors: which.
    pub(crate) fn audit_journal(&self) -> Result<(), String> {
        let kept: Vec<&Party> = self.journal.pairs.keys().collect();
        let matched: Vec<&Party> = self.exchange.matched().collect();
        if kept == matched && self.exchange.news.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the journal has matches of {kept:?}, the exchange of {matched:?}, news {:?}",
            self.exchange.news
        ))
    }

    fn end_of_pair(&mut self, pair: &Rc<RefCell<Pair>>, by: Party, kind: Kind, reason: Option<u32>) {
        let mut pair = pair.borrow_mut();
        if std::mem::replace(&mut pair.is_told, true) {
            return;
        }
        let side = ["client", "server"][pair.side(by)];
        let after = Some(pair.opened.unwrap_or(pair.matched).elapsed());
        self.journal.note(kind, after, reason.map(|reason| (reason, Some(side.to_owned()))), pair.all());
    }

    /// Why an end has left its match, where that is not that its connection has ended: the arena says so until the block is another
    /// connection's, and of one that is open it has no reason.
    fn reason_of_leaving(&self, party: Party) -> Option<u32> {
        let program = self.sessions.get(&party.session)?.program()?;
        let block = program.arena.block(party.conn.index())?;
        let name = block.name.load(std::sync::atomic::Ordering::Acquire);
        // It takes another name when it leaves.
        let is_it = name == party.conn.name() || name == party.conn.name().wrapping_add(1);
        let code = block.reason.load(std::sync::atomic::Ordering::Relaxed);
        let says_nothing = [0, Reason::NotNominated.code(), Reason::AwaitingPeer.code()].contains(&code);
        (is_it && !says_nothing).then_some(code)
    }

    fn describe(&self, party: Party) -> Option<End> {
        let session = self.sessions.get(&party.session)?;
        let program = session.program()?;
        let block = program.arena.block(party.conn.index())?;
        let (local, remote): (SocketAddr, SocketAddr) = block.addresses();
        let is_client = block.role.load(std::sync::atomic::Ordering::Relaxed) == 0;
        let shown = EventEnd {
            role: if is_client { "client" } else { "server" }.to_owned(),
            pid: session.peer.pid,
            uid: session.peer.uid(),
            comm: program.comm.clone(),
            local: local.to_string(),
            remote: remote.to_string(),
        };
        Some(End { user: session.peer.identity.user(), netns: session.peer.netns, shown })
    }

    /// Answers `events`: `SINCE`, the number of the last event that is known, and `LATELY`, how many at most.
    pub(crate) fn events(&self, asker: SessionId, arg: &str) -> Reply {
        let wrong = || failure("not a number of an event", arg, "use: SINCE LATELY");
        let (since, lately) = arg.split_once(' ').ok_or_else(wrong)?;
        let since: u64 = since.parse().map_err(|_| wrong())?;
        let lately: usize = lately.parse().map_err(|_| wrong())?;
        let sees = self.sees_ends(asker);
        let (events, is_missing) = self.journal.after(since, lately, &sees);
        // Those that are not to be seen are not to be asked for again.
        let next = match events.last() {
            Some(last) if events.len() == ANSWER => last.number,
            _ => self.journal.number,
        };
        let events = events.iter().map(|event| event.report(&sees)).collect();
        Ok(json(&Events { events, next, is_missing, broker: self.life().to_owned() }))
    }

    /// As [`Server::is_shown`], of ends whose sessions may have ended.
    fn sees_ends(&self, asker: SessionId) -> impl Fn(&End) -> bool + use<> {
        let all = self.may_change(asker).is_ok();
        let private = self.config.private;
        let own = self.sessions.get(&asker).map(|session| (session.peer.identity.user(), session.peer.netns));
        move |end| {
            let is_own = |(user, netns): (Option<u32>, Option<u64>)| {
                user.is_some() && user == end.user && (private || netns.is_some() && netns == end.netns)
            };
            all || own.is_some_and(is_own)
        }
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
    fn report(&self, sees: impl Fn(&End) -> bool) -> Event {
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Event {
            number: self.number,
            time_ms: since.as_millis() as u64,
            event: self.kind.name().to_owned(),
            after_us: self.after.map(|after| after.as_micros() as u64),
            reason: self.why.as_ref().map(|(code, _)| reason_text(*code)),
            by: self.why.as_ref().and_then(|(_, by)| by.clone()),
            ends: self.ends.iter().filter(|end| sees(end)).map(|end| end.shown.clone()).collect(),
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
        End { user: Some(uid), netns: Some(1), shown }
    }

    #[test]
    fn each_user_has_the_last_thousand_whatever_others_do() {
        let mut journal = Journal::default();
        journal.note(Kind::Opened, None, None, vec![end(7)]);
        for _ in 0..10 * OF_USER {
            journal.note(Kind::FellBack, None, None, vec![end(8)]);
        }
        let of = |user: u32| move |end: &End| end.user == Some(user);
        let (mine, is_missing) = journal.after(0, usize::MAX, of(7));
        assert_eq!((mine.len(), mine[0].number, is_missing), (1, 1, false));
        let (theirs, is_missing) = journal.after(0, usize::MAX, of(8));
        assert_eq!((theirs.len(), theirs[0].number, is_missing), (OF_USER, 9002, true));
        let (last, _) = journal.after(0, 3, of(8));
        assert_eq!(last.iter().map(|event| event.number).collect::<Vec<_>>(), [9999, 10_000, 10_001]);
        assert_eq!(journal.after(10_000, usize::MAX, of(8)).0.len(), 1);
        assert!(journal.after(10_001, usize::MAX, of(8)).0.is_empty());
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
        assert_eq!(journal.after(0, usize::MAX, |_| true).0.len(), 2);
        assert_eq!(journal.after(0, usize::MAX, |end| end.user == Some(8)).0.len(), 1);
        let (seen, _) = journal.after(0, usize::MAX, |end| end.user == Some(8));
        let report = seen[0].report(|end| end.user == Some(8));
        assert_eq!(report.ends.len(), 1, "the other end is another user's");
    }
}
