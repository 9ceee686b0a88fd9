//! Tools' questions: each user's in turn, and so many in a turn of the loop that everybody else is heard meanwhile.
//!
//! The operator's are answered as they are read.

use super::Server;
use super::query::text_of;
use crate::client::{PROCESSES, what};
use crate::clock;
use crate::datagram::MAX_FDS;
use crate::ends::SessionId;
use crate::foreign::Shared;
use crate::rate::Shares;
use crate::reply::{failure, json};
use crate::report::{Answer, Pids};
use crate::session::Kind;
use crate::sockopt;
use rustix::fd::{AsFd, OwnedFd};
use shunpike_wire::session::ClcBytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long questions are answered in one turn where no program says anything, in microseconds. A single one may take longer.
const A_TURN: usize = 500;

/// What is to be answered.
#[allow(clippy::large_enum_variant, reason = "most are of the larger kind, and few")]
#[derive(Debug)]
pub enum Asked {
    /// A question.
    This(u16, ClcBytes),
    /// The next piece of a list, for which there is room.
    More,
}

/// Questions that wait for their turn, by user.
#[derive(Default, Debug)]
pub struct Questions {
    of: BTreeMap<u32, VecDeque<(SessionId, Asked)>>,
    /// The user who had the last turn.
    last: u32,
}

impl Questions {
    /// One more.
    pub fn enter(&mut self, user: u32, session: SessionId, asked: Asked) {
        self.of.entry(user).or_default().push_back((session, asked));
    }

    /// A session has ended.
    pub fn forget(&mut self, user: u32, session: SessionId) {
        if let Some(queue) = self.of.get_mut(&user) {
            queue.retain(|(id, _)| *id != session);
            if queue.is_empty() {
                self.of.remove(&user);
            }
        }
    }

    /// The next one: of the user after the one who was last, and so on. Whose share is spent is told so, but a list that has begun
    /// goes on when there is some again.
    pub fn next(&mut self, shares: &Shares, now: Instant) -> Option<(u32, SessionId, Asked)> {
        let is_due = |(user, queue): &(&u32, &VecDeque<(SessionId, Asked)>)| {
            matches!(queue.front(), Some((_, Asked::This(..)))) || shares.has_left(**user, now)
        };
        let later = self.last.checked_add(1).map(|next| self.of.range(next..));
        let user = *later.into_iter().flatten().chain(self.of.range(..=self.last)).find(is_due)?.0;
        self.last = user;
        let queue = self.of.get_mut(&user)?;
        let (session, asked) = queue.pop_front()?;
        if queue.is_empty() {
            self.of.remove(&user);
        }
        Some((user, session, asked))
    }

    /// When one of them is due, if there are any.
    pub fn due_at(&self, shares: &Shares, now: Instant) -> Option<Instant> {
        let due = self.of.iter().map(|(user, queue)| match queue.front() {
            Some((_, Asked::More)) => shares.free_at(*user).unwrap_or(now),
            _ => now,
        });
        due.min()
    }
}

impl Server {
    /// A tool asks something, or can be told more.
    pub(super) fn take_question(&mut self, id: SessionId, asked: Asked) {
        let is_operators = self.sessions.gets_exact_figures(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Asked::This(..) = asked {
            // Nothing else is expected of it.
            session.kind = Kind::Tool;
        }
        if is_operators {
            return self.answer(id, asked);
        }
        let user = session.peer.uid();
        // It is asked for once.
        if std::mem::take(&mut session.awaits_room) {
            self.listen_to(id);
        }
        self.questions.enter(user, id, asked);
    }

    /// Answers for as long as a turn may have, and says how many.
    pub(super) fn answer_questions(&mut self) -> usize {
        let until = clock::now() + Duration::from_micros(self.share(A_TURN) as u64);
        let mut answered = 0;
        loop {
            let now = clock::now();
            if now > until {
                break;
            }
            let Some((user, id, asked)) = self.questions.next(&self.answering, now) else { break };
            answered += 1;
            if self.answering.has_left(user, now) {
                self.answer(id, asked);
            } else {
                let hint = "ask again in a second: each user has a share of the broker's time";
                let error = failure("asked too much", &format!("uid {user}"), hint);
                self.tell(id, &json(&Answer { error: Some(error) }));
            }
            self.deliver();
            self.answering.spend(user, clock::now() - now, now);
        }
        answered
    }

    fn answer(&mut self, id: SessionId, asked: Asked) {
        match asked {
            Asked::This(
                what @ (what::SS | what::EXPLAIN | what::LINKGROUP | what::EVENTS | what::REVOKE),
                arg,
            ) => {
                let begun = text_of(arg.as_slice()).and_then(|arg| self.begin_listing(id, what, arg));
                match begun {
                    Ok(None) => {}
                    Ok(Some(text)) => self.tell(id, &text),
                    Err(error) => self.tell(id, &json(&Answer { error: Some(error) })),
                }
            }
            Asked::This(what::PIDS, arg) => self.tell_processes(id, arg.as_slice()),
            Asked::This(what, arg) => {
                let fresh = self.freshness(id, what);
                if fresh.is_none_or(|fresh| !self.wait_for_figures(id, what, arg, fresh)) {
                    self.answer_at_once(id, what, arg);
                }
            }
            Asked::More => {
                let sent = self.list_more(id);
                self.note(id, sent);
            }
        }
    }

    fn answer_at_once(&mut self, id: SessionId, what: u16, arg: ClcBytes) {
        let text = self.query(id, what, arg.as_slice());
        self.tell(id, &text);
    }

    /// Answers what has waited for figures.
    pub(super) fn answer_with_figures(&mut self, id: SessionId, what: u16, arg: ClcBytes) {
        let Some(user) = self.sessions.get(&id).map(|session| session.peer.uid()) else { return };
        let (began, is_operators) = (clock::now(), self.sessions.gets_exact_figures(id));
        self.answer_at_once(id, what, arg);
        self.deliver();
        if !is_operators {
            self.answering.spend(user, clock::since(began), began);
        }
    }

    fn tell(&mut self, id: SessionId, text: &str) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let sent = session.answer(text);
            self.note(id, sent);
        }
    }

    /// Answers `pids`: the processes themselves, so that the kernel tells the asker what it calls them.
    fn tell_processes(&mut self, id: SessionId, arg: &[u8]) {
        let wanted = std::str::from_utf8(arg).unwrap_or_default().split_whitespace();
        let wanted: BTreeSet<u32> =
            wanted.filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != 0).take(PROCESSES).collect();
        let is_shown = self.sessions.is_shown(id);
        let of_programs = self.sessions.iter().filter(|(id, session)| {
            session.is_programs() && wanted.contains(&session.peer.pid) && is_shown(&self.sessions, **id)
        });
        let processes: BTreeMap<u32, OwnedFd> = of_programs
            .filter_map(|(_, session)| Some((session.peer.pid, sockopt::peer_process(session.as_fd())?)))
            .collect();
        let (pids, fds): (Vec<u32>, Vec<_>) =
            processes.into_iter().map(|(pid, fd)| (pid, Rc::new(Shared::from(fd)))).unzip();
        let mut fds = fds.into_iter();
        let mut pieces = vec![(json(&Pids { pids }), fds.by_ref().take(MAX_FDS).collect::<Vec<_>>())];
        while fds.len() > 0 {
            // Blanks end a text in JSON: an empty piece would end the answer.
            pieces.push((" ".to_owned(), fds.by_ref().take(MAX_FDS).collect()));
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            let sent = session.answer_with(pieces);
            self.note(id, sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked::This(what::INFO, ClcBytes::new(b"").expect("fits"))
    }

    /// Whose the next ones are.
    fn users(questions: &mut Questions, shares: &Shares, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| questions.next(shares, now).map(|(user, ..)| user)).collect()
    }

    #[test]
    fn users_have_their_turns_however_much_one_asks() {
        let (mut questions, shares, now) = (Questions::default(), Shares::default(), Instant::now());
        for (user, count) in [(7, 5), (u32::MAX, 1), (8, 2)] {
            (0..count).for_each(|id| questions.enter(user, SessionId(id), asked()));
        }
        assert_eq!(users(&mut questions, &shares, now), [7, 8, u32::MAX, 7, 8, 7, 7, 7]);
        assert!(questions.due_at(&shares, now).is_none());
        for id in 0..3 {
            questions.enter(7, SessionId(id), asked());
        }
        questions.forget(7, SessionId(1));
        questions.forget(8, SessionId(1));
        let next = |questions: &mut Questions| questions.next(&shares, now).map(|(_, id, _)| id.0);
        assert_eq!([(); 3].map(|()| next(&mut questions)), [Some(0), Some(2), None]);
    }

    #[test]
    fn a_list_goes_on_when_its_user_has_a_share_again_and_others_go_on_meanwhile() {
        let (mut questions, mut shares, now) = (Questions::default(), Shares::default(), Instant::now());
        shares.spend(7, Duration::from_millis(200), now);
        questions.enter(7, SessionId(1), Asked::More);
        questions.enter(8, SessionId(2), Asked::More);
        assert_eq!(users(&mut questions, &shares, now), [8]);
        let due = questions.due_at(&shares, now).expect("one waits");
        assert_eq!(due, now + Duration::from_secs(1));
        assert_eq!(users(&mut questions, &shares, due - Duration::from_millis(1)), [0; 0]);
        assert_eq!(users(&mut questions, &shares, due), [7]);
    }
}
