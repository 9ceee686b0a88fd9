//! The connections of a process, found in turns: some blocks of some arenas are looked at, and then everybody else is heard.

use super::Server;
use super::connections::{Found, LOOKS, SLICE, show, tree, trees};
use crate::delays;
use crate::ends::SessionId;
use crate::explain;
use crate::listing::{Explanations, Place, Search};
use crate::reply::{failure, json};
use crate::report::Failure;
use crate::session::Session;
use shunpike_shm::arena::BLOCKS;
use shunpike_wire::session::ConnId;
use std::sync::atomic::Ordering;

/// Most connections of a process that are told of at a time.
const MOST: usize = 1024;
/// Blocks that are looked at for one question: as many as sixteen arenas have.
const ALL_LOOKS: usize = 16 * BLOCKS;
/// So many processes that share an arena make a look at one of its blocks cost twice as much.
const SHARERS_A_LOOK: usize = 16;

/// Why a process's connections are not told of: they are others', or there are none.
pub(super) fn nothing(on: &str, is_hidden: bool) -> Failure {
    if is_hidden {
        return failure("not permitted", on, "another user's");
    }
    let hint = "was it started by 'shunpike run', and does it have TCP connections? See 'shunpike ss'";
    failure("no watched connection", on, hint)
}

impl Search {
    /// In arenas with a session that `is_shown`. A child may speak for a connection in an arena whose sessions are others': those come
    /// last.
    pub fn new(
        server: &Server,
        pid: u32,
        fd: Option<u32>,
        is_shown: impl Fn(SessionId) -> bool,
        is_known: impl Fn(SessionId) -> bool,
    ) -> Self {
        let (mut firsts, mut is_hidden) = (Vec::new(), false);
        for tree in trees(server).into_values() {
            let is_its = |session: &Session| session.peer.pid == pid;
            let Some((first, ..)) = tree.first() else { continue };
            if tree.iter().any(|(id, ..)| is_shown(*id)) {
                firsts.push((!tree.iter().any(|(_, session, _)| is_its(session)), *first));
            } else {
                is_hidden |= tree.iter().any(|(id, session, _)| is_its(session) && is_known(*id));
            }
        }
        firsts.sort_unstable();
        let arenas = firsts.into_iter().map(|(_, first)| first).collect();
        Self { pid, fd, arenas, block: 0, left: ALL_LOOKS, found: Vec::new(), own: 0, is_hidden }
    }

    /// As it was asked for.
    pub(super) fn arg(&self) -> String {
        self.fd.map_or_else(|| self.pid.to_string(), |fd| format!("{}:{fd}", self.pid))
    }

    pub(super) fn on(&self) -> String {
        match self.fd {
            Some(fd) => format!("PID {}, descriptor {fd}", self.pid),
            None => format!("PID {}", self.pid),
        }
    }

    /// Looks at no more than so many blocks. Whether it is over. Errors: there is no connection, or none that is shown, which is told of
    /// sessions that `is_known`; or there are too many.
    pub fn go_on(
        &mut self,
        server: &Server,
        looks: usize,
        is_shown: impl Fn(SessionId) -> bool,
        is_known: impl Fn(SessionId) -> bool,
    ) -> Result<bool, Failure> {
        let mut budget = looks.min(self.left);
        while budget > 0
            && let Some(&first) = self.arenas.front()
        {
            let mut looks = budget;
            let (from, mut left, mut weight) = (self.block, looks, 1);
            if let Some(program) = server.sessions.get(&first).and_then(Session::program) {
                let tree = tree(server, program.key);
                let is_its = tree.iter().any(|(_, session, _)| session.peer.pid == self.pid);
                // Each of those who share it may be the one that speaks for a connection.
                weight = 1 + tree.len() / SHARERS_A_LOOK;
                looks = (budget / weight).max(1);
                left = looks;
                let _watch =
                    delays::look(tree.first().map_or(u32::MAX, |(_, session, _)| session.peer.uid()));
                let maker = program.arena.header().pid.load(Ordering::Relaxed);
                for (index, block) in program.arena.held(from, &mut left) {
                    if self.fd.is_some_and(|fd| fd != block.fd.load(Ordering::Relaxed)) {
                        continue;
                    }
                    let conn = ConnId::new(index, block.name.load(Ordering::Acquire));
                    let Some(found) = show(server, &tree, maker, conn, &block) else { continue };
                    if found.connection.pid != self.pid {
                        continue;
                    }
                    if !is_shown(found.party.session) {
                        self.is_hidden |= is_known(found.party.session);
                        continue;
                    }
                    if self.found.len() == MOST && !is_its && self.own > 0 {
                        // What others' arenas say of it is theirs to say.
                        self.found.truncate(self.own);
                        self.arenas.clear();
                        return Ok(true);
                    }
                    if self.found.len() == MOST {
                        let hint = "name one of them, PID:FD, as 'shunpike ss' shows";
                        return Err(failure("too many connections", &self.on(), hint));
                    }
                    self.found.push(Place { fd: found.connection.fd, arena: first, block: index });
                    self.own += usize::from(is_its);
                }
            }
            let mut spent = (looks - left) * weight;
            if left == 0 {
                // There may be more behind those.
                self.block = from + looks as u32;
            } else {
                self.arenas.pop_front();
                self.block = 0;
                // An arena costs a look, whatever is in it.
                spent += 1;
            }
            self.left = self.left.saturating_sub(spent);
            budget = budget.saturating_sub(spent);
        }
        let is_over = self.arenas.is_empty() || self.left == 0;
        if is_over && self.found.is_empty() && !self.arenas.is_empty() {
            let hint = "so many connections are shared by so many processes; name the process itself";
            return Err(failure("not found in time", &self.on(), hint));
        }
        if is_over && self.found.is_empty() {
            return Err(nothing(&self.on(), self.is_hidden));
        }
        Ok(is_over)
    }

    /// What stands at a place now, if it still is one of those that were looked for.
    pub fn at(&self, server: &Server, place: Place, is_shown: impl Fn(SessionId) -> bool) -> Option<Found> {
        let program = server.sessions.get(&place.arena)?.program()?;
        let block = program.arena.block(place.block)?;
        let conn = ConnId::new(place.block, block.name.load(Ordering::Acquire));
        let maker = program.arena.header().pid.load(Ordering::Relaxed);
        let found = show(server, &tree(server, program.key), maker, conn, &block)?;
        let is_it = (found.connection.pid, found.connection.fd) == (self.pid, place.fd);
        (is_it && is_shown(found.party.session)).then_some(found)
    }
}

impl Explanations {
    /// None yet.
    pub fn new(search: Search) -> Self {
        Self { search, is_sorted: false, looked: 0, began: false }
    }

    /// The next piece of the answer, a JSON text of [`crate::report::Explanations`], and whether it is the last.
    pub fn next(
        &mut self,
        server: &Server,
        is_shown: impl Fn(SessionId) -> bool,
        is_known: impl Fn(SessionId) -> bool,
    ) -> Result<(String, bool), Failure> {
        if !self.is_sorted {
            if self.search.go_on(server, server.share(LOOKS), &is_shown, is_known)? {
                self.search.found.sort_unstable();
                self.is_sorted = true;
            }
            return Ok((String::new(), false));
        }
        let (mut text, slice) = (String::new(), server.share(SLICE));
        for place in self.search.found.iter().skip(self.looked).take(slice) {
            if let Some(found) = self.search.at(server, *place, &is_shown) {
                let is_first = !std::mem::replace(&mut self.began, true);
                text.push_str(if is_first { "{\"explanations\":[" } else { "," });
                text.push_str(&json(&explain::one(found.connection, &server.config.policy)));
            }
        }
        self.looked += slice;
        if self.looked < self.search.found.len() {
            return Ok((text, false));
        }
        if !self.began {
            return Err(nothing(&self.search.on(), self.search.is_hidden));
        }
        text.push_str("]}");
        Ok((text, true))
    }
}

/// A process, and a descriptor of it where one is named.
pub(super) fn pid_and_fd(arg: &str) -> Result<(u32, Option<u32>), Failure> {
    let wrong = || failure("not a process or connection", arg, "use: PID or PID:FD, as 'shunpike ss' shows");
    let (pid, fd) = match arg.split_once(':') {
        Some((pid, fd)) => (pid, Some(fd.parse().map_err(|_| wrong())?)),
        None => (arg, None),
    };
    // Of those that we cannot see each has number 0.
    let pid = pid.parse().ok().filter(|pid| *pid != 0);
    Ok((pid.ok_or_else(wrong)?, fd))
}
