//! Sums over all programs, made in turns: some blocks of some arenas are looked at, and then everybody else is heard.
//!
//! A round looks at every arena once. Questions that are about sums wait for the end of one; a program that is gone is looked at for the
//! last time beside it.

use super::Server;
use crate::clock;
use crate::delays;
use crate::ends::SessionId;
use crate::foreign::Last;
use crate::ledger::Looks;
use crate::session::Session;
use crate::stats::{ArenaKey, Look};
use shunpike_shm::arena::{ArenaView, BLOCKS};
use shunpike_wire::session::ClcBytes;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks that are looked at in a turn, where no program says anything: half a millisecond.
const A_TURN: usize = 512;
/// What an arena costs beside its blocks, in blocks.
const AN_ARENA: usize = 4;
/// Figures that are no older will do for who is not the operator. Rounds for others take a tenth of the broker's time at most, as
/// [`crate::rate::Shares`]: of one that took longer they are good for longer.
const LATELY: Duration = Duration::from_secs(1);
const PART: u32 = 10;
/// Programs of one user that are gone and wait for the rest of their last look; those beyond have none but at a turn's blocks.
const LEAVING_OF_USER: usize = 16;

/// How fresh figures have to be.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Fresh {
    /// Of a round that begins after the question.
    Exact,
    /// Of a moment ago.
    Lately,
    /// The same, but who asks waits no longer than so.
    Soon(Duration),
}

/// Who waits for figures.
#[derive(Copy, Clone)]
#[allow(clippy::large_enum_variant, reason = "most are of the larger kind, and few")]
enum Waiting {
    /// A tool, with its question.
    Tool(SessionId, u16, ClcBytes),
    Metrics,
}

/// What is counted, and for whom.
#[derive(Default)]
pub(super) struct Census {
    round: Option<Round>,
    /// Those whom the round serves, and until when they wait for it;
    waiting: Vec<(Option<Instant>, Waiting)>,
    /// those who came in its midst and are served by the next one.
    later: Vec<Waiting>,
    leaving: VecDeque<Leaving>,
    /// How many have had their last look.
    gone: u64,
    /// When the last round that is over began, and what it took.
    counted: Option<(Instant, Duration)>,
}

struct Round {
    began: Instant,
    took: Duration,
    /// A session of each arena that is to be looked at.
    arenas: Vec<(ArenaKey, SessionId)>,
    /// At the last of them.
    look: Option<Look>,
    looks: Looks,
    /// How many have to have had their last look when it ends: those that were gone when it began, or when it came to them.
    gone: u64,
}

/// A program that is gone.
struct Leaving {
    user: u32,
    is_operator: bool,
    key: ArenaKey,
    arena: ArenaView,
    look: Look,
    left: usize,
}

impl Census {
    /// When the figures were so.
    pub(super) fn counted_at(&self) -> Option<Instant> {
        self.counted.map(|(began, _)| began)
    }

    /// A session has ended: it waits for nothing.
    pub(super) fn forget(&mut self, session: SessionId) {
        let is_other = |waiting: &Waiting| !matches!(waiting, Waiting::Tool(id, ..) if *id == session);
        self.waiting.retain(|(_, waiting)| is_other(waiting));
        self.later.retain(is_other);
    }

    /// Whether somebody waits, or something is to be looked at.
    pub(super) fn is_at_work(&self) -> bool {
        self.round.is_some() || !self.leaving.is_empty()
    }

    /// How many will have had their last look when all that wait for it have.
    fn all_gone(&self) -> u64 {
        self.gone + self.leaving.len() as u64
    }

    fn is_fresh(&self, fresh: Fresh, now: Instant) -> bool {
        fresh != Fresh::Exact
            && self
                .counted
                .is_some_and(|(began, took)| now.saturating_duration_since(began) < LATELY.max(took * PART))
    }

    fn enter(&mut self, fresh: Fresh, waiting: Waiting, now: Instant) {
        match fresh {
            Fresh::Exact if self.round.is_some() => self.later.push(waiting),
            Fresh::Soon(patience) => self.waiting.push((Some(now + patience), waiting)),
            _ => self.waiting.push((None, waiting)),
        }
    }

    /// Those who have what they waited for.
    fn served(&mut self, now: Instant) -> Vec<Waiting> {
        let is_over = self.round.is_none();
        let is_due =
            |(until, _): &mut (Option<Instant>, _)| is_over || until.is_some_and(|until| until <= now);
        self.waiting.extract_if(.., is_due).map(|(_, waiting)| waiting).collect()
    }
}

impl Server {
    /// Has a question wait for figures, if they have to be fresher than those that there are. Whether it waits.
    pub(super) fn wait_for_figures(&mut self, id: SessionId, what: u16, arg: ClcBytes, fresh: Fresh) -> bool {
        let now = clock::now();
        let waits = !self.census.is_fresh(fresh, now);
        if waits {
            self.census.enter(fresh, Waiting::Tool(id, what, arg), now);
            self.begin_round();
        }
        waits
    }

    pub(super) fn serve_metrics(&mut self, id: u64) {
        if self.metrics.as_mut().is_some_and(|metrics| metrics.serve(id, &self.epoll)) {
            self.census.enter(Fresh::Exact, Waiting::Metrics, clock::now());
            self.begin_round();
        }
    }

    fn tell_metrics(&mut self) {
        let figures = self.figures();
        if let Some(metrics) = &mut self.metrics {
            metrics.tell(&figures, &self.epoll);
        }
    }

    fn begin_round(&mut self) {
        if self.census.round.is_some() {
            return;
        }
        let mut seen = HashSet::new();
        let programs = || self.sessions.programs();
        let arenas = programs().map(|(id, _, program)| (program.key, id));
        let arenas = arenas.filter(|(key, _)| seen.insert(*key)).collect();
        let users: HashSet<u32> = programs().map(|(_, session, _)| session.peer.uid()).collect();
        let (began, took, looks) = (clock::now(), Duration::ZERO, Looks::among(users.len()));
        let gone = self.census.all_gone();
        self.census.round = Some(Round { began, took, arenas, look: None, looks, gone });
    }

    /// Looks at some blocks, and answers those who waited for the last of them. Whether anything was done.
    pub(super) fn count(&mut self) -> bool {
        if !self.census.is_at_work() {
            return false;
        }
        let of_turn = self.share(A_TURN);
        let mut left = of_turn / 2;
        while left > 0
            && let Some(leaving) = self.census.leaving.pop_front()
        {
            let user = leaving.user;
            if let Some(leaving) = self.look_at_leaving(leaving, &mut left) {
                self.census.leaving.push_front(leaving);
            }
            self.dismiss_if_last(user);
        }
        if let Some(mut round) = self.census.round.take() {
            let began = clock::now();
            self.go_round(&mut round, of_turn / 2 + left);
            round.took += clock::since(began);
            if round.arenas.is_empty() && round.gone <= self.census.gone {
                self.census.counted = Some((round.began, round.took));
            } else {
                self.census.round = Some(round);
            }
        }
        for waiting in self.census.served(clock::now()) {
            match waiting {
                Waiting::Tool(id, what, arg) => self.answer_with_figures(id, what, arg),
                Waiting::Metrics => self.tell_metrics(),
            }
        }
        if self.census.round.is_none() && !self.census.later.is_empty() {
            let later = std::mem::take(&mut self.census.later);
            self.census.waiting.extend(later.into_iter().map(|waiting| (None, waiting)));
            self.begin_round();
        }
        true
    }

    fn go_round(&mut self, round: &mut Round, mut left: usize) {
        while left > 0
            && let Some((key, id)) = round.arenas.last().copied()
        {
            let has_it = |session: &Session| session.program().is_some_and(|program| program.key == key);
            // Of several sessions that one may have ended that was there when the round began.
            let there = self.sessions.get(&id).filter(|session| has_it(session));
            let there = there.or_else(|| self.sessions.values().find(|session| has_it(session)));
            let Some((user, arena)) =
                there.and_then(|session| Some((session.peer.uid(), &session.program()?.arena)))
            else {
                round.arenas.pop();
                round.look = None;
                round.gone = self.census.all_gone();
                left = left.saturating_sub(AN_ARENA);
                continue;
            };
            let of_user = round.looks.of(user);
            let looks = left.min(*of_user);
            let watch = delays::look(user);
            let mut look = round.look.take().unwrap_or_else(|| Look::begin(arena));
            let spared = look.go_on(arena, looks);
            drop(watch);
            *of_user -= looks - spared;
            left = left.saturating_sub(looks - spared + AN_ARENA);
            if spared > 0 || *of_user == 0 {
                self.ledger.take(key, look);
                round.arenas.pop();
            } else {
                round.look = Some(look);
            }
        }
    }

    /// A program is gone, and nobody has its arena any more.
    pub(super) fn look_at_last(&mut self, user: u32, is_operator: bool, key: ArenaKey, arena: ArenaView) {
        let of_user = self.census.leaving.iter().filter(|leaving| leaving.user == user).count();
        let left = if of_user < LEAVING_OF_USER { BLOCKS } else { A_TURN };
        let watch = delays::look(user);
        let look = Look::begin(&arena);
        drop(watch);
        let leaving = Leaving { user, is_operator, key, arena, look, left };
        let leaving = self.look_at_leaving(leaving, &mut { A_TURN });
        self.census.leaving.extend(leaving);
    }

    /// ... for so long as a turn may have, and lets go of it when that was all; else it is given back. What it costs is of its user's share
    /// for questions: whose share is spent is not counted in full.
    fn look_at_leaving(&mut self, mut leaving: Leaving, of_turn: &mut usize) -> Option<Leaving> {
        let Leaving { user, key, .. } = leaving;
        let began = clock::now();
        let has_share = leaving.is_operator || self.answering.has_left(user, began);
        let looks = if has_share { leaving.left.min(*of_turn) } else { 0 };
        let watch = delays::look(user);
        let spared = leaving.look.go_on(&leaving.arena, looks);
        drop(watch);
        leaving.left -= looks - spared;
        *of_turn = of_turn.saturating_sub(looks - spared + AN_ARENA);
        self.answering.spend(user, clock::since(began), began);
        if has_share && spared == 0 && leaving.left > 0 {
            return Some(leaving);
        }
        self.census.gone += 1;
        self.ledger.take(key, leaving.look);
        self.ledger.close(key, leaving.arena.header().pid.load(Ordering::Relaxed));
        self.helpers.bury(user, leaving.arena.into_fd(), Last::Free, &self.of_helpers);
        None
    }

    /// Lets go of the arenas that wait for their last look.
    pub(super) fn forgo_last_looks(&mut self) {
        for Leaving { user, arena, .. } in std::mem::take(&mut self.census.leaving) {
            self.helpers.bury(user, arena.into_fd(), Last::Free, &self.of_helpers);
        }
    }
}
