//! loopback-ism: an ISM device whose DMBs are memfds of this host's processes.

use crate::ends::{Party, SessionId};
use crate::foreign::Shared;
use crate::ism::{Attachment, Cursors, Held, IsmDevice, IsmError, NewDmb};
use crate::random;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::SealFlags;
use shunpike_shm::device::{Capabilities, ClientDevice, Loopback};
use shunpike_shm::lane::{self, Cursor, Dmb as Lane, MAX_CLASS, Wait, Window, Words};
use shunpike_shm::region;
use shunpike_wire::{Chid, DmbSize, DmbToken, Gid};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::rc::Rc;

/// References that a peer may have to one DMB: one, and those that it has yet to let go of after a handshake that was over.
const MOST_ATTACHED: u32 = 16;

struct Registered {
    owner: Party,
    user: u32,
    peer: Party,
    size: DmbSize,
    memory: Rc<Shared>,
    /// Whether the owner still holds its reference.
    owned: bool,
    /// References of the peer.
    attached: u32,
    /// The peer let go of one without knowing that it is mapped nowhere any more, or died with one: a process that it forked may use
    /// the connection still.
    shared: bool,
    /// Its connection is over, and the owner keeps it mapped.
    parked: bool,
}

/// The device. Its tables live in the broker; the bytes do not pass through it in no-copy mode.
pub struct LoopbackIsm {
    gid: Gid,
    dmbs: HashMap<DmbToken, Registered>,
    /// What is in the table by owner and by user. A DMB that only its peer still holds counts: it is memory
    /// kept alive.
    sessions: HashMap<SessionId, Held>,
    users: HashMap<u32, Held>,
    /// Those that a session owns or may attach.
    of: BTreeSet<(SessionId, u64)>,
    limit: usize,
    next_token: fn() -> u64,
}

impl LoopbackIsm {
    /// A device of at most `limit` DMBs (the kernel's has 5000).
    pub fn new(gid: Gid, limit: usize) -> Self {
        let (sessions, users) = (HashMap::new(), HashMap::new());
        Self {
            gid,
            dmbs: HashMap::new(),
            sessions,
            users,
            of: BTreeSet::new(),
            limit,
            next_token: random::number,
        }
    }

    /// As [`Self::new`], for a broker.
    pub fn boxed(gid: Gid, limit: usize) -> Box<dyn IsmDevice> {
        Box::new(Self::new(gid, limit))
    }

    fn free_token(&self) -> DmbToken {
        loop {
            let token = DmbToken((self.next_token)());
            if token.0 != 0 && !self.dmbs.contains_key(&token) {
                return token;
            }
        }
    }

    fn note(&mut self, token: DmbToken, dmb: &Registered) {
        self.of.extend([dmb.owner.session, dmb.peer.session].map(|session| (session, token.0)));
    }

    fn drop_if_unused(&mut self, token: DmbToken) {
        let unused = self.dmbs.get(&token).is_some_and(|dmb| !dmb.owned && dmb.attached == 0);
        if let Some(dmb) = unused.then(|| self.dmbs.remove(&token)).flatten() {
            self.forget(token, &dmb);
            if dmb.parked && !dmb.shared {
                // Its owner may sleep, and unmaps it when it wakes. Not here: a writer to it could make us wait.
                dmb.memory.empty_at_last(memory_len(dmb.size));
            }
        }
    }

    fn forget(&mut self, token: DmbToken, dmb: &Registered) {
        for session in [dmb.owner.session, dmb.peer.session] {
            self.of.remove(&(session, token.0));
        }
        release(&mut self.sessions, dmb.owner.session, dmb.size);
        release(&mut self.users, dmb.user, dmb.size);
    }
}

fn release<K: Eq + Hash>(holders: &mut HashMap<K, Held>, holder: K, size: DmbSize) {
    if let Some(held) = holders.get_mut(&holder) {
        held.dmbs -= 1;
        held.bytes -= memory_len(size);
        if held.dmbs == 0 {
            holders.remove(&holder);
        }
    }
}

impl IsmDevice for LoopbackIsm {
    fn register_dmb(&mut self, new: NewDmb) -> Result<DmbToken, IsmError> {
        if self.dmbs.len() >= self.limit {
            return Err(IsmError::NoSpace);
        }
        if new.size.class() > MAX_CLASS {
            return Err(IsmError::NoMemory);
        }
        check_memory(new.memory.as_fd(), new.size).ok_or(IsmError::NoMemory)?;
        let token = self.free_token();
        let NewDmb { owner, user, peer, size, memory } = new;
        let memory = Rc::new(memory);
        for held in [self.sessions.entry(owner.session).or_default(), self.users.entry(user).or_default()] {
            held.dmbs += 1;
            held.bytes += memory_len(size);
        }
        let (attached, shared, parked) = (0, false, false);
        let dmb = Registered { owner, user, peer, size, memory, owned: true, attached, shared, parked };
        self.note(token, &dmb);
        self.dmbs.insert(token, dmb);
        Ok(token)
    }

    fn unregister_dmb(&mut self, token: DmbToken, owner: SessionId) -> Result<(), IsmError> {
        let dmb = self
            .dmbs
            .get_mut(&token)
            .filter(|dmb| dmb.owned && dmb.owner.session == owner)
            .ok_or(IsmError::UnknownToken)?;
        dmb.owned = false;
        self.drop_if_unused(token);
        Ok(())
    }

    fn attach_dmb(&mut self, token: DmbToken, by: Party) -> Result<Attachment<'_>, IsmError> {
        let dmb = self.dmbs.get_mut(&token).ok_or(IsmError::UnknownToken)?;
        if dmb.peer != by {
            return Err(IsmError::NotAllowed);
        }
        if !dmb.owned || dmb.parked {
            return Err(IsmError::PeerGone);
        }
        // Each one is a descriptor under way to the peer.
        if dmb.attached >= MOST_ATTACHED {
            return Err(IsmError::NotAllowed);
        }
        dmb.attached += 1;
        Ok(Attachment { size: dmb.size, memory: Some(&dmb.memory) })
    }

    fn detach_dmb(&mut self, token: DmbToken, by: SessionId, gone: bool) -> Result<(), IsmError> {
        let dmb = self
            .dmbs
            .get_mut(&token)
            .filter(|dmb| dmb.attached > 0 && dmb.peer.session == by)
            .ok_or(IsmError::UnknownToken)?;
        dmb.attached -= 1;
        dmb.shared |= !gone;
        self.drop_if_unused(token);
        Ok(())
    }

    fn park_dmb(&mut self, token: DmbToken, owner: SessionId) -> Result<SessionId, IsmError> {
        let dmb = self
            .dmbs
            .get_mut(&token)
            .filter(|dmb| dmb.owned && !dmb.parked && dmb.owner.session == owner)
            .ok_or(IsmError::UnknownToken)?;
        dmb.parked = true;
        Ok(dmb.peer.session)
    }

    fn is_spare(&self, token: DmbToken) -> Result<bool, IsmError> {
        let dmb = self.dmbs.get(&token).filter(|dmb| dmb.owned && dmb.parked);
        let dmb = dmb.ok_or(IsmError::UnknownToken)?;
        if dmb.shared { Err(IsmError::NotAllowed) } else { Ok(dmb.attached == 0) }
    }

    fn reuse_dmb(&mut self, token: DmbToken, owner: Party, peer: Party) -> Result<DmbToken, IsmError> {
        let is_spare = self.is_spare(token)?;
        let dmb = self.dmbs.get(&token).filter(|dmb| dmb.owner.session == owner.session);
        let dmb = dmb.ok_or(IsmError::UnknownToken)?;
        if !is_spare || dmb.peer.session != peer.session {
            return Err(IsmError::NotAllowed);
        }
        let new = self.free_token();
        let dmb = self.dmbs.remove(&token).ok_or(IsmError::UnknownToken)?;
        for session in [dmb.owner.session, dmb.peer.session] {
            self.of.remove(&(session, token.0));
        }
        let dmb = Registered { owner, peer, parked: false, ..dmb };
        self.note(new, &dmb);
        self.dmbs.insert(new, dmb);
        Ok(new)
    }

    fn names(&self) -> [&'static str; 2] {
        ["loopback-ism", "lo"]
    }

    fn local_gid(&self) -> Gid {
        self.gid
    }

    fn chid(&self) -> Chid {
        Chid::LOOPBACK
    }

    fn supports_v2(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Loopback::CAPABILITIES
    }

    fn end_session(&mut self, session: SessionId, most: usize) -> usize {
        let its = (session, 0)..=(session, u64::MAX);
        let its = self.of.range(its).map(|(_, token)| DmbToken(*token));
        let tokens: Vec<DmbToken> = its.take(most).collect();
        for token in &tokens {
            let token = *token;
            // Whoever else refers to it finds it by its own session.
            self.of.remove(&(session, token.0));
            let Some(dmb) = self.dmbs.get_mut(&token) else { continue };
            dmb.owned &= dmb.owner.session != session;
            if dmb.peer.session == session {
                dmb.shared |= dmb.attached > 0;
                dmb.attached = 0;
            }
            if !dmb.owned
                && dmb.attached == 0
                && let Some(dmb) = self.dmbs.remove(&token)
            {
                self.forget(token, &dmb);
            }
        }
        tokens.len()
    }

    fn cursors(&self, token: DmbToken) -> Option<Cursors> {
        let memory = &self.dmbs.get(&token)?.memory;
        let words = Lane::words_at(token.0);
        let word = |at: usize| {
            let mut word = [0; 8];
            let n = rustix::io::pread(memory.as_fd(), &mut word, (words + at) as u64).ok()?;
            (n == word.len()).then(|| u64::from_ne_bytes(word))
        };
        let (produced, consumed) = (Cursor(word(Words::PROD_AT)?), Cursor(word(Words::CONS_AT)?));
        Some(Cursors {
            produced: produced.offset(),
            consumed: consumed.offset(),
            window: Window(word(Words::WINDOW_AT)?).size(),
            ended: produced.has(Cursor::END),
            blocked: Wait(word(Words::WWAIT_AT)?).declared(),
        })
    }

    fn held_by_session(&self, session: SessionId) -> Held {
        self.sessions.get(&session).copied().unwrap_or_default()
    }

    fn held_by_user(&self, uid: u32) -> Held {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    fn dmb_count(&self) -> usize {
        self.dmbs.len()
    }

    fn dmb_limit(&self) -> usize {
        self.limit
    }
}

fn memory_len(size: DmbSize) -> u64 {
    (lane::HEADER + size.bytes()) as u64
}

/// Whether `memory` can be mapped by a peer without harm: of the right size for ever, writable, and made
/// of ordinary pages (a touch of a huge page that is not there is a SIGBUS).
fn check_memory(memory: BorrowedFd<'_>, size: DmbSize) -> Option<()> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    region::verify(memory, memory_len(size) as usize).ok()?;
    let seals = rustix::fs::fcntl_get_seals(memory).ok()?;
    let writable = !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    let plain = rustix::fs::fstatfs(memory).ok()?.f_type as i64 == TMPFS_MAGIC;
    (writable && plain).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Fixture};
    use shunpike_shm::lane::HEADER;
    use shunpike_wire::session::ConnId;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn device() -> LoopbackIsm {
        LoopbackIsm::new(random::gid(), 8)
    }

    #[test]
    fn conforms() {
        conformance::run::<_, Loopback>(&Fixture { make: device, limit: 8 });
    }

    #[test]
    fn a_token_is_neither_zero_nor_taken_twice() {
        static DRAWN: AtomicU64 = AtomicU64::new(0);
        let mut device = device();
        // 0, 0, 1, 1, 2, 2, ...: each value is offered twice.
        device.next_token = || DRAWN.fetch_add(1, Ordering::Relaxed) / 2;
        let tokens: Vec<_> = (0..4).map(|_| conformance::register(&mut device, 1, 2).unwrap().0).collect();
        assert_eq!(tokens, [1, 2, 3, 4]);
    }

    #[test]
    fn cursors_are_those_in_the_memory() {
        let mut device = device();
        let token = conformance::register(&mut device, 1, 2).unwrap();
        let write = |device: &LoopbackIsm, at: usize, word: u64| {
            let at = (Lane::words_at(token.0) + at) as u64;
            rustix::io::pwrite(device.dmbs[&token].memory.as_fd(), &word.to_ne_bytes(), at).unwrap();
        };
        write(&device, Words::PROD_AT, Cursor::new(3, 700).0);
        write(&device, Words::CONS_AT, Cursor::new(3, 500).with(Cursor::TAKEN).0);
        write(&device, Words::WINDOW_AT, 16384);
        let quiet = Cursors { produced: 700, consumed: 500, window: 16384, ended: false, blocked: false };
        assert_eq!(device.cursors(token), Some(quiet));
        write(&device, Words::PROD_AT, Cursor::new(3, 700).with(Cursor::END).0);
        write(&device, Words::WWAIT_AT, 1 << 32 | 1);
        assert_eq!(device.cursors(token), Some(Cursors { ended: true, blocked: true, ..quiet }));
        assert_eq!(device.cursors(DmbToken(token.0 ^ 1)), None);
    }

    #[test]
    fn memory_that_could_harm_the_peer_is_refused() {
        let size = DmbSize::MIN;
        let len = HEADER + size.bytes();
        let party = |session| Party { session: SessionId(session), conn: ConnId(1) };
        let refused = |memory| {
            let new = NewDmb { owner: party(1), user: 0, peer: party(2), size, memory: Shared::from(memory) };
            assert_eq!(device().register_dmb(new), Err(IsmError::NoMemory));
        };
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("t", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, len as u64).unwrap();
        refused(unsealed);
        refused(region::create("t", len + HEADER).unwrap());
        refused(region::create_published("t", len).unwrap().0);
        refused(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
    }
}
