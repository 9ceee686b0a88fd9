//! Helpers: processes that touch what clients pass, so that the broker's loop never does.
//!
//! A call on a client's descriptor may take as long as the client likes: TCP_INFO waits for a lock that a thread of the client
//! holds while it faults in a page of its own file system, and so does a close. No thread could be given up then, and a process
//! that is killed stays until the call returns. So it is one that nobody needs: it has one request at a time, and holds nothing
//! but the socket of the session that it works for. Each user has helpers of its own, a few; what they wait for makes
//! that user's programs wait.

mod gone;
mod process;
mod work;

use crate::channel::{self, MOST};
use crate::clock;
use crate::ends::SessionId;
use crate::foreign::Last;
use crate::sequence::SequenceReader;
use gone::Gone;
use process::{Process, is_final};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
pub use work::{Reply, Request};

/// Ids of helpers in the event loop have this bit.
pub const HELPER: u64 = 1 << 62;
/// Helpers of one user, those included that were killed and have not ended.
const OF_USER: usize = 4;
/// Helpers of all users; where there are more users, they take turns. The operator's come beside them.
const OF_ALL: usize = 64;
/// Helpers of all users that were killed and have not ended, whose channels are closed.
const GONE: usize = 32;
/// A user's helpers are all at work for so long, and something waits: it is given another.
const GROW: Duration = Duration::from_millis(20);
/// A helper that has not answered for so long is killed, and the session that it works for ends.
const GIVE_UP: Duration = Duration::from_secs(2);
/// Descriptors of memory that a helper closes at a time: as much as they can have is freed in far less than that.
const FREED: usize = 16;
/// After a fork or a message that failed, and for helpers to end with the broker.
const PAUSE: Duration = Duration::from_millis(100);
/// Descriptors that may wait to be closed before nobody new is let in: this part of those that the broker may have.
const CLOGGED: u64 = 4;

/// Something to do with descriptors.
struct Job {
    request: Request,
    fds: Vec<Rc<OwnedFd>>,
    /// For whom, if it still is there.
    session: Option<SessionId>,
}

/// What a helper works on.
struct Work {
    session: Option<SessionId>,
    since: Instant,
}

struct Helper {
    id: u64,
    process: Process,
    work: Option<Work>,
    killed: bool,
}

/// A user's helpers, and what they are to do.
struct Crew {
    helpers: Vec<Helper>,
    jobs: VecDeque<Job>,
    /// To be closed.
    doomed: Vec<Rc<OwnedFd>>,
    /// Its user has no session any more: they end when all is done.
    dismissed: bool,
}

impl Default for Crew {
    /// Until somebody asks for something.
    fn default() -> Self {
        Self { helpers: Vec::new(), jobs: VecDeque::new(), doomed: Vec::new(), dismissed: true }
    }
}

/// The helpers of all users.
pub struct Helpers {
    crews: BTreeMap<u32, Crew>,
    of: HashMap<u64, u32>,
    sequences: Option<SequenceReader>,
    next: u64,
    paused_until: Option<Instant>,
    gone: Gone,
    most_doomed: usize,
}

/// What a helper's channel says.
pub enum Heard {
    /// Nothing of interest.
    Nothing,
    /// An answer for this session.
    Answer(SessionId, Reply, Vec<OwnedFd>),
    /// The helper ended in the midst of this session's message.
    Lost(SessionId),
}

impl Helpers {
    /// None yet. `sequences`: where the broker is privileged.
    pub fn new(sequences: Option<SequenceReader>) -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most_doomed = usize::try_from(descriptors.unwrap_or(1 << 20) / CLOGGED).unwrap_or(usize::MAX);
        Self {
            crews: BTreeMap::new(),
            of: HashMap::new(),
            sequences,
            next: HELPER,
            paused_until: None,
            gone: Gone::new(),
            most_doomed,
        }
    }

    /// Whether sequence numbers can be looked at.
    pub fn is_privileged(&self) -> bool {
        self.sequences.is_some()
    }

    /// Has a helper of `user` do something for a session, which takes its time.
    pub fn ask(
        &mut self,
        user: u32,
        session: SessionId,
        request: Request,
        fds: Vec<Rc<OwnedFd>>,
        epoll: &OwnedFd,
    ) {
        let job = Job { request, fds, session: Some(session) };
        let crew = self.crews.entry(user).or_default();
        crew.dismissed = false;
        crew.jobs.push_back(job);
        self.pump(user, epoll);
    }

    /// Has what came from `user` closed, or its memory given back.
    pub fn bury(&mut self, user: u32, fd: Rc<OwnedFd>, last: Last, epoll: &OwnedFd) {
        let crew = self.crews.entry(user).or_default();
        match last {
            Last::Close => crew.doomed.push(fd),
            Last::Free => match crew.jobs.back_mut() {
                Some(Job { request: Request::Close, session: None, fds }) if fds.len() < FREED => {
                    fds.push(fd)
                }
                _ => crew.jobs.push_back(Job { request: Request::Close, fds: vec![fd], session: None }),
            },
            Last::Empty(len) => {
                crew.jobs.push_back(Job { request: Request::Empty(len), fds: vec![fd], session: None });
            }
        }
        self.pump(user, epoll);
    }

    /// A session has ended: nobody waits for what it asked.
    pub fn forget(&mut self, user: u32, session: SessionId) {
        let Some(crew) = self.crews.get_mut(&user) else { return };
        crew.jobs.retain(|job| job.session != Some(session));
        for work in crew.helpers.iter_mut().filter_map(|helper| helper.work.as_mut()) {
            work.session = work.session.filter(|of| *of != session);
        }
    }

    /// A user's last session has ended.
    pub fn dismiss(&mut self, user: u32, epoll: &OwnedFd) {
        if let Some(crew) = self.crews.get_mut(&user) {
            crew.dismissed = true;
            self.pump(user, epoll);
        }
    }

    /// Whose messages are to be done yet.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.crews.values().flat_map(|crew| {
            let waiting = crew.jobs.iter().filter_map(|job| job.session);
            waiting.chain(crew.helpers.iter().filter_map(|helper| helper.work.as_ref()?.session))
        })
    }

    /// Whether anything is being done, by helpers that may get it done.
    pub fn is_busy(&self) -> bool {
        self.crews.values().any(|crew| {
            !crew.jobs.is_empty()
                || !crew.doomed.is_empty()
                || crew.helpers.iter().any(|helper| helper.work.is_some())
        })
    }

    /// Whether so much waits to be closed that nobody new can be let in.
    pub fn is_clogged(&self) -> bool {
        self.crews.values().map(|crew| crew.doomed.len()).sum::<usize>() > self.most_doomed
    }

    /// Something happened at a helper's channel.
    pub fn hear(&mut self, id: u64, epoll: &OwnedFd) -> Heard {
        let Some(&user) = self.of.get(&id) else { return Heard::Nothing };
        let Some(crew) = self.crews.get_mut(&user) else { return Heard::Nothing };
        let Some(at) = crew.helpers.iter().position(|helper| helper.id == id) else { return Heard::Nothing };
        let heard = channel::receive::<Reply>(crew.helpers[at].process.channel.as_fd());
        match heard {
            Err(Errno::AGAIN) => Heard::Nothing,
            Ok(Some((reply, fds))) => {
                let session = crew.helpers[at].work.take().and_then(|work| work.session);
                let heard = match session {
                    Some(session) => Heard::Answer(session, reply, fds),
                    None => {
                        crew.doomed.extend(fds.into_iter().map(Rc::new));
                        Heard::Nothing
                    }
                };
                self.pump(user, epoll);
                heard
            }
            Ok(None) | Err(_) => {
                let session = self.lose(user, at, epoll);
                self.pump(user, epoll);
                session.map_or(Heard::Nothing, Heard::Lost)
            }
        }
    }

    /// When there is something to do without an event.
    pub fn deadline(&self) -> Option<Instant> {
        let crews = self.crews.values().filter_map(|crew| {
            let at_work = crew.helpers.iter().filter(|helper| !helper.killed);
            let since = at_work.filter_map(|helper| helper.work.as_ref()).map(|work| work.since).min();
            let waits = !crew.jobs.is_empty() || !crew.doomed.is_empty();
            let grow = since.filter(|_| waits && crew.helpers.len() < OF_USER).map(|since| since + GROW);
            // One that is late already has been given all that there is to give.
            let grow = grow.filter(|at| *at > clock::now());
            since.map(|since| since + GIVE_UP).into_iter().chain(grow).min()
        });
        crews.chain(self.paused_until).chain(self.gone.deadline()).min()
    }

    /// Does what is due; returns the sessions whose messages are lost.
    pub fn keep_time(&mut self, now: Instant, epoll: &OwnedFd) -> Vec<SessionId> {
        self.gone.keep_time(now);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        let mut lost = Vec::new();
        let mut wanting = Vec::new();
        for (user, crew) in &mut self.crews {
            for helper in crew.helpers.iter_mut().filter(|helper| !helper.killed) {
                let Some(work) = helper.work.as_mut().filter(|work| work.since + GIVE_UP <= now) else {
                    continue;
                };
                tracing::warn!(user, "a helper is kept waiting by what it was given: killed");
                helper.process.kill();
                helper.killed = true;
                lost.extend(work.session.take());
            }
            if !crew.jobs.is_empty() || !crew.doomed.is_empty() {
                wanting.push(*user);
            }
        }
        wanting.into_iter().for_each(|user| self.pump(user, epoll));
        self.crews
            .retain(|_, crew| !crew.helpers.is_empty() || !crew.jobs.is_empty() || !crew.doomed.is_empty());
        lost
    }

    /// Gives a user's helpers what there is to do.
    fn pump(&mut self, user: u32, epoll: &OwnedFd) {
        loop {
            let Some(crew) = self.crews.get_mut(&user) else { return };
            if crew.jobs.is_empty() && crew.doomed.is_empty() {
                return self.retire(user, epoll);
            }
            let idle = crew.helpers.iter().position(|helper| helper.work.is_none() && !helper.killed);
            let Some(at) = idle.or_else(|| self.start(user, epoll)) else {
                return self.leave_to_the_killed(user);
            };
            let Some(crew) = self.crews.get_mut(&user) else { return };
            let job = crew.next();
            let helper = &mut crew.helpers[at];
            let fds: Vec<BorrowedFd<'_>> = job.fds.iter().map(|fd| fd.as_fd()).collect();
            match channel::send(helper.process.channel.as_fd(), &job.request, &fds) {
                Ok(()) => {
                    let Job { session, request, fds } = job;
                    drop(fds);
                    if let Request::Close = request {
                        // It waits for this, and has ended if it cannot be told.
                        let _ = channel::send(helper.process.channel.as_fd(), &Request::Go, &[]);
                    }
                    helper.work = Some(Work { session, since: clock::now() });
                }
                Err(errno) => {
                    match job.request {
                        Request::Close => crew.doomed.extend(job.fds),
                        _ => crew.jobs.push_front(job),
                    }
                    if !is_final(errno) {
                        // Memory, or more descriptors under way than a user may have: not this helper's fault.
                        tracing::warn!(%errno, "cannot tell a helper; pausing");
                        self.paused_until = Some(clock::now() + PAUSE);
                        return;
                    }
                    self.lose(user, at, epoll);
                }
            }
        }
    }

    /// Ends a user's helpers that have nothing to do, if it needs none any more.
    fn retire(&mut self, user: u32, epoll: &OwnedFd) {
        let Some(crew) = self.crews.get_mut(&user).filter(|crew| crew.dismissed) else { return };
        for helper in crew.helpers.extract_if(.., |helper| helper.work.is_none()) {
            end(helper, user, epoll, &mut self.of, &mut self.gone);
        }
    }

    /// Ends a helper of another user's that has nothing to do, so that there may be one of `user`'s. Whether there was one.
    fn make_way(&mut self, user: u32, epoll: &OwnedFd) -> bool {
        let is_idle = |helper: &Helper| helper.work.is_none() && !helper.killed;
        for (other, crew) in self.crews.iter_mut().filter(|(other, _)| **other != user) {
            if let Some(at) = crew.helpers.iter().position(is_idle) {
                let helper = crew.helpers.swap_remove(at);
                end(helper, *other, epoll, &mut self.of, &mut self.gone);
                return true;
            }
        }
        false
    }

    /// Another helper for a user, where there may be one more and it would help.
    fn start(&mut self, user: u32, epoll: &OwnedFd) -> Option<usize> {
        let now = clock::now();
        let own = rustix::process::geteuid().as_raw();
        let is_operator = user == 0 || user == own;
        let crew = self.crews.get(&user)?;
        let of_user = crew.helpers.len();
        let is_late = |helper: &Helper| helper.work.as_ref().is_none_or(|work| work.since + GROW <= now);
        if self.paused_until.is_some() || !crew.helpers.iter().all(is_late) {
            return None;
        }
        self.gone.reap();
        if of_user + self.gone.of(user) >= OF_USER || self.gone.count() >= GONE && !is_operator {
            return None;
        }
        if self.of.len() >= OF_ALL && !is_operator && !self.make_way(user, epoll) {
            return None;
        }
        let crew = self.crews.get_mut(&user)?;
        let sequences = self.sequences.as_ref();
        let kept: Vec<BorrowedFd<'_>> = sequences.into_iter().flat_map(SequenceReader::fds).collect();
        let id = self.next;
        let started = Process::start(&kept, |broker| work::work(&broker, sequences)).and_then(|process| {
            epoll::add(epoll, &process.channel, EventData::new_u64(id), EventFlags::IN)?;
            Ok(process)
        });
        match started {
            Ok(process) => {
                self.next += 1;
                self.of.insert(id, user);
                crew.helpers.push(Helper { id, process, work: None, killed: false });
                Some(of_user)
            }
            Err(error) => {
                tracing::warn!(%error, "no helper; pausing");
                self.paused_until = Some(now + PAUSE);
                None
            }
        }
    }

    /// What can only be closed goes to a helper that will not read it any more: the kernel closes it when that one ends.
    fn leave_to_the_killed(&mut self, user: u32) {
        let Some(crew) = self.crews.get_mut(&user) else { return };
        while crew.doomed.len() >= MOST
            && let Some(helper) = crew.helpers.iter().find(|helper| helper.killed)
        {
            let batch: Vec<BorrowedFd<'_>> = crew.doomed.iter().take(MOST).map(|fd| fd.as_fd()).collect();
            if channel::send(helper.process.channel.as_fd(), &Request::Close, &batch).is_err() {
                return;
            }
            crew.doomed.drain(..MOST);
        }
    }

    /// A helper is gone. Returns the session for which it worked.
    fn lose(&mut self, user: u32, at: usize, epoll: &OwnedFd) -> Option<SessionId> {
        let helper = self.crews.get_mut(&user)?.helpers.swap_remove(at);
        let session = helper.work.as_ref().and_then(|work| work.session);
        end(helper, user, epoll, &mut self.of, &mut self.gone);
        session
    }
}

/// Ends a helper that is in no crew any more, and counts it for its user until nothing is left of it.
fn end(helper: Helper, user: u32, epoll: &OwnedFd, of: &mut HashMap<u64, u32>, gone: &mut Gone) {
    let _ = epoll::delete(epoll, &helper.process.channel);
    of.remove(&helper.id);
    gone.enter(user, helper.process);
}

impl Crew {
    /// What is to be done next, where there is something.
    fn next(&mut self) -> Job {
        let is_pressing = self.doomed.len() >= MOST;
        match if is_pressing { None } else { self.jobs.pop_front() } {
            Some(job) => job,
            None => {
                let fds = self.doomed.drain(..self.doomed.len().min(MOST)).collect();
                Job { request: Request::Close, fds, session: None }
            }
        }
    }
}

impl Drop for Helpers {
    /// Ends them all. What still was to be closed is left to the end of this process, which waits for less.
    fn drop(&mut self) {
        for (user, crew) in std::mem::take(&mut self.crews) {
            let Crew { helpers, jobs, doomed, .. } = crew;
            std::mem::forget((jobs, doomed));
            for helper in helpers {
                self.gone.enter(user, helper.process);
            }
        }
        let patience = Instant::now() + PAUSE;
        while self.gone.count() > 0 && Instant::now() < patience {
            self.gone.reap();
            if self.gone.count() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
