//! Which two nominated sockets are the two ends of one connection. No I/O, no clock.
//!
//! Sequence numbers, where a privileged broker may look at them, are the match whatever lies between. Else,
//! in one network namespace, a connection's addresses name it: mirrored addresses are the match, where both sockets
//! hold them at one moment (the earlier nomination's may be closed by now: [`Matching::opposite`]). Between
//! namespaces they may be anybody's, so that an exact mirror image of everything known is asked for, twice
//! and with bytes in between, and where two could be meant, neither is taken.

use crate::ends::{Party, SessionId};
use crate::facts::{Facts, Sequences, Tuple};
use shunpike_wire::Reason;
use shunpike_wire::session::Role;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// How often one end may be asked to nominate again in a row.
pub const MAX_TRIES: u8 = 16;

/// What a nomination leads to. No decision on an end means: it waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Two ends of one connection. Neither waits any more.
    Matched {
        /// The end that connected.
        client: Party,
        /// The end that accepted.
        server: Party,
    },
    /// The other end of this one's match was told that nobody would come: it may be asleep in the kernel, and not hear of it.
    Unheard(Party),
    /// To be nominated again when quiet; no longer waiting.
    Again(Party),
    /// No lane; no longer waiting.
    Refused(Party, Reason),
}

/// What an end's last nomination said.
#[derive(Copy, Clone)]
struct Seen {
    role: Role,
    facts: Facts,
    /// Whether the nomination stands. If not, the end was asked again; it still is a rival of others.
    waiting: bool,
}

/// What is remembered of an end that is not matched.
#[derive(Default)]
struct Entry {
    seen: Option<Seen>,
    /// How often it was asked to nominate again.
    tries: u8,
    /// The end in another namespace that mirrored it once, and how many bytes had gone then.
    image: Option<(Party, u64)>,
    /// It was told that nobody is expected at the other end.
    is_told_of_nobody: bool,
    /// The end that came while this one, with this cookie, had been proved before, and is to be proved once more.
    doubted: Option<(Party, u64)>,
}

/// Who the other end of a nomination is.
enum Counterpart {
    /// Nobody who waits.
    None,
    /// This one.
    Proved(Party),
    /// This one seems so, but is of an earlier connection.
    Stale(Party),
    /// In another namespace this one, but what is known does not suffice yet.
    Unproved(Party),
    /// In another namespace this one mirrors it exactly.
    Mirrored(Party),
    /// One of several, or this one could be several's.
    Ambiguous(Vec<Party>),
}

/// The nominations that wait for their peer.
pub struct Matching {
    /// Whether ends in different namespaces are matched without sequence numbers.
    across: bool,
    /// In order, so that those of one session are found among many.
    entries: BTreeMap<Party, Entry>,
    /// Those that were seen, by their own view of the connection. One tuple may be in several namespaces.
    tuples: HashMap<Tuple, Vec<Party>>,
    /// Those whose sequence numbers are known, by these.
    sequences: HashMap<Sequences, Vec<Party>>,
}

impl Matching {
    /// An empty table. `across`: match between namespaces without sequence numbers. Whoever is root in a
    /// namespace can imitate addresses and counts there, and so receive what is meant for another: only among
    /// processes that could do so anyway, those of one user.
    pub fn new(across: bool) -> Self {
        Self { across, entries: BTreeMap::new(), tuples: HashMap::new(), sequences: HashMap::new() }
    }

    /// Enters a nomination, in the place of an earlier one of the same end.
    pub fn nominate(&mut self, party: Party, role: Role, facts: Facts) -> Vec<Decision> {
        self.forget_seen(party);
        let mut decisions = Vec::new();
        let tuple = facts.tuple;
        if tuple == tuple.mirrored() {
            // Connected to itself (simultaneous open): one socket is both ends.
            return vec![self.refuse(party, Reason::Sync)];
        }
        for (other, twin) in self.at(tuple) {
            if twin.facts.cookie == facts.cookie {
                // One socket held by two processes: the first one speaks for it.
                if twin.waiting {
                    return vec![self.refuse(party, Reason::Shared)];
                }
                // It nominates anew, or does not: a socket is entered once, by however many it was nominated.
                self.forget_seen(other);
            }
            if twin.facts.cookie != facts.cookie && same_netns(&twin.facts, &facts) {
                // The kernel gives a tuple to one socket at a time: the older one is closed.
                decisions.push(self.refuse(other, Reason::NotEstablished));
            }
        }
        let counterpart = self.counterpart(&facts);
        self.enter(party, Seen { role, facts, waiting: true });
        match counterpart {
            Counterpart::None => {}
            Counterpart::Proved(peer) => decisions.extend(self.meet(party, peer)),
            Counterpart::Stale(peer) => decisions.push(self.refuse(peer, Reason::NotEstablished)),
            Counterpart::Mirrored(peer) if self.mirrored_before(party, peer) => {
                decisions.extend(self.meet(party, peer));
            }
            Counterpart::Mirrored(peer) => {
                self.note_image(party, peer);
                self.note_image(peer, party);
                decisions.extend([peer, party].map(|end| self.again(end, Reason::Sync)));
            }
            Counterpart::Unproved(peer) => {
                decisions.extend([peer, party].map(|end| self.again(end, Reason::Sync)));
            }
            Counterpart::Ambiguous(rivals) => {
                for end in rivals.into_iter().chain([party]) {
                    if self.is_waiting(end) {
                        decisions.push(self.again(end, Reason::Indirect));
                    }
                }
            }
        }
        decisions
    }

    fn counterpart(&self, facts: &Facts) -> Counterpart {
        // 64 bits that only the two ends know are the best proof, whatever lies between them.
        let numbers = facts.sequences.map(Sequences::mirrored);
        let known = numbers.and_then(|numbers| self.sequences.get(&numbers)).map_or(&[][..], Vec::as_slice);
        let known: Vec<Party> = known.iter().copied().filter(|party| self.is_waiting(*party)).collect();
        match known.as_slice() {
            [] => {}
            [peer] => return Counterpart::Proved(*peer),
            _ => return Counterpart::Ambiguous(known),
        }
        let differ = |c: &Seen| facts.sequences.is_some() && c.facts.sequences.is_some();
        if let Some((peer, c)) = self.near(facts).find(|(_, c)| c.waiting) {
            let is_peer = !differ(&c) && follows(&c.facts, facts);
            // If not, it nominated an earlier connection of the same addresses.
            return if is_peer { Counterpart::Proved(peer) } else { Counterpart::Stale(peer) };
        }
        if !self.across || facts.tuple.is_loopback() {
            return Counterpart::None;
        }
        let opposite = self.at(facts.tuple.mirrored()).into_iter();
        let far: Vec<_> = opposite.filter(|(_, c)| !differ(c) && could_be_peers(&c.facts, facts)).collect();
        let mut rivals = self.at(facts.tuple);
        rivals.retain(|(_, rival)| rival.facts.cookie != facts.cookie);
        match (far.as_slice(), rivals.as_slice()) {
            (far, _) if far.iter().all(|(_, c)| !c.waiting) => Counterpart::None,
            ([(peer, c)], []) if exact_mirror(&c.facts, facts) => Counterpart::Mirrored(*peer),
            ([(peer, _)], []) => Counterpart::Unproved(*peer),
            // The same addresses twice in different namespaces: nothing says who belongs to whom.
            _ => Counterpart::Ambiguous(far.iter().chain(&rivals).map(|(other, _)| *other).collect()),
        }
    }

    fn meet(&mut self, party: Party, peer: Party) -> Vec<Decision> {
        let role = |end| self.seen(end).map(|seen| seen.role);
        let (client, server) = match (role(party), role(peer)) {
            (Some(Role::Client), Some(Role::Server)) => (party, peer),
            (Some(Role::Server), Some(Role::Client)) => (peer, party),
            _ => return vec![self.refuse(peer, Reason::Sync), self.refuse(party, Reason::Sync)],
        };
        let is_unheard = self.entries.get(&peer).is_some_and(|entry| entry.is_told_of_nobody);
        self.withdraw(client);
        self.withdraw(server);
        let unheard = is_unheard.then_some(Decision::Unheard(party));
        [Decision::Matched { client, server }].into_iter().chain(unheard).collect()
    }

    /// Whether both ends mirrored one another earlier, and bytes have gone since.
    fn mirrored_before(&self, party: Party, peer: Party) -> bool {
        let moved = |end, other| {
            let image = self.entries.get(&end).and_then(|entry| entry.image);
            let now = self.seen(end).map(|seen| total(&seen.facts));
            image.zip(now).is_some_and(|((of, before), now)| of == other && now > before)
        };
        moved(party, peer) && moved(peer, party)
    }

    fn note_image(&mut self, end: Party, other: Party) {
        if let Some(entry) = self.entries.get_mut(&end)
            && let Some(seen) = &entry.seen
            && entry.image.is_none_or(|(of, _)| of != other)
        {
            entry.image = Some((other, total(&seen.facts)));
        }
    }

    /// Asks an end to nominate again, or refuses it with `reason` when it was asked [`MAX_TRIES`] times.
    pub fn again(&mut self, party: Party, reason: Reason) -> Decision {
        let entry = self.entries.entry(party).or_default();
        entry.tries += 1;
        if let Some(seen) = &mut entry.seen {
            seen.waiting = false;
        }
        if entry.tries > MAX_TRIES { self.refuse(party, reason) } else { Decision::Again(party) }
    }

    /// The nomination that `facts` would be matched with by nothing but its addresses, and what was known of it when it
    /// was made. Its socket may have been closed since, and its addresses be another's.
    pub fn opposite(&self, facts: &Facts) -> Option<(Party, Facts)> {
        let numbered = |c: &Seen| facts.sequences.is_some() && c.facts.sequences.is_some();
        let found = self.near(facts).find(|(_, c)| c.waiting && !numbered(c));
        found.map(|(party, seen)| (party, seen.facts))
    }

    /// Asks `early` again, now that `late` has come: proved before and after, its socket held the addresses in between.
    pub fn doubt(&mut self, early: Party, late: Party) -> Decision {
        if let Some(entry) = self.entries.get_mut(&early) {
            entry.doubted = entry.seen.map(|seen| (late, seen.facts.cookie));
        }
        self.again(early, Reason::Sync)
    }

    /// The end with the addresses opposite to `facts`, where it is to nominate anew before it can be matched.
    pub fn asked_again(&self, facts: &Facts) -> Option<Party> {
        self.near(facts).find(|(_, seen)| !seen.waiting).map(|(party, _)| party)
    }

    /// Whether `party`, proved just now, had been asked again for the sake of `other`, and its socket is the same.
    pub fn is_vindicated(&self, party: Party, facts: &Facts, other: Party) -> bool {
        self.entries.get(&party).is_some_and(|entry| entry.doubted == Some((other, facts.cookie)))
    }

    /// An end whose nomination waits is told that nobody is expected at the other.
    pub fn told_of_nobody(&mut self, party: Party) {
        if let Some(entry) = self.entries.get_mut(&party) {
            entry.is_told_of_nobody = true;
        }
    }

    /// Refuses an end and forgets it.
    pub fn refuse(&mut self, party: Party, reason: Reason) -> Decision {
        self.withdraw(party);
        Decision::Refused(party, reason)
    }

    /// Forgets an end: it was closed, or wants no lane.
    pub fn withdraw(&mut self, party: Party) {
        self.forget_seen(party);
        self.entries.remove(&party);
    }

    /// Forgets all ends of a session.
    pub fn end_session(&mut self, session: SessionId) {
        let all: Vec<Party> = self.entries.range(Party::all_of(session)).map(|(party, _)| *party).collect();
        for party in all {
            self.withdraw(party);
        }
    }

    /// Forgets all nominations and returns whose they were.
    pub fn clear(&mut self) -> Vec<Party> {
        self.tuples.clear();
        self.sequences.clear();
        std::mem::take(&mut self.entries).into_keys().collect()
    }

    /// Whether this end's nomination waits.
    pub fn is_waiting(&self, party: Party) -> bool {
        self.seen(party).is_some_and(|seen| seen.waiting)
    }

    /// What an end whose nomination waits said.
    pub fn nomination(&self, party: Party) -> Option<(Role, Facts)> {
        self.seen(party).filter(|seen| seen.waiting).map(|seen| (seen.role, seen.facts))
    }

    /// Number of nominations that wait.
    pub fn waiting(&self) -> usize {
        self.entries.values().filter(|entry| entry.seen.is_some_and(|seen| seen.waiting)).count()
    }

    /// Whether nothing is remembered of any end.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.tuples.is_empty() && self.sequences.is_empty()
    }

    /// Everybody of whom something is remembered.
    pub fn parties(&self) -> impl Iterator<Item = Party> {
        self.entries.keys().copied()
    }

    /// Whether each nomination is found by its addresses and numbers, once, and nothing else is.
    pub fn is_consistent(&self) -> bool {
        let once = |parties: Option<&Vec<Party>>, party: &Party| {
            parties.is_some_and(|parties| parties.iter().filter(|other| *other == party).count() == 1)
        };
        let seen = || self.entries.iter().filter_map(|(party, entry)| Some((party, entry.seen?.facts)));
        let numbered = || seen().filter_map(|(party, facts)| Some((party, facts.sequences?)));
        seen().all(|(party, facts)| once(self.tuples.get(&facts.tuple), party))
            && numbered().all(|(party, numbers)| once(self.sequences.get(&numbers), party))
            && seen().count() == self.tuples.values().map(Vec::len).sum::<usize>()
            && numbered().count() == self.sequences.values().map(Vec::len).sum::<usize>()
    }

    fn seen(&self, party: Party) -> Option<Seen> {
        self.entries.get(&party)?.seen
    }

    fn at(&self, tuple: Tuple) -> Vec<(Party, Seen)> {
        let parties = self.tuples.get(&tuple).map_or(&[][..], Vec::as_slice);
        parties.iter().filter_map(|party| Some((*party, self.seen(*party)?))).collect()
    }

    /// Those with the addresses opposite to `facts`, of the same namespace.
    fn near(&self, facts: &Facts) -> impl Iterator<Item = (Party, Seen)> {
        self.at(facts.tuple.mirrored()).into_iter().filter(|(_, seen)| same_netns(&seen.facts, facts))
    }

    fn enter(&mut self, party: Party, seen: Seen) {
        self.tuples.entry(seen.facts.tuple).or_default().push(party);
        if let Some(sequences) = seen.facts.sequences {
            self.sequences.entry(sequences).or_default().push(party);
        }
        let entry = self.entries.entry(party).or_default();
        (entry.seen, entry.is_told_of_nobody) = (Some(seen), false);
    }

    fn forget_seen(&mut self, party: Party) {
        let Some(seen) = self.entries.get_mut(&party).and_then(|entry| entry.seen.take()) else { return };
        remove(&mut self.tuples, &seen.facts.tuple, party);
        if let Some(sequences) = seen.facts.sequences {
            remove(&mut self.sequences, &sequences, party);
        }
    }
}

fn remove<K: Eq + Hash>(index: &mut HashMap<K, Vec<Party>>, key: &K, party: Party) {
    if let Some(parties) = index.get_mut(key) {
        parties.retain(|other| *other != party);
        if parties.is_empty() {
            index.remove(key);
        }
    }
}

fn same_netns(a: &Facts, b: &Facts) -> bool {
    a.netns.is_some() && a.netns == b.netns
}

/// Whether two ends in different namespaces agree on what does not change during a connection.
fn could_be_peers(a: &Facts, b: &Facts) -> bool {
    !same_netns(a, b) && a.cookie != b.cookie && a.terms == b.terms.mirrored()
}

/// Whether `late` can be the peer of `early`, seen some time before: what had been confirmed then must have
/// arrived by now, and what had arrived must have been sent.
fn follows(early: &Facts, late: &Facts) -> bool {
    early.cookie != late.cookie && late.arrived >= early.acked && late.sent >= early.arrived
}

/// Whether each end has read just what the other has written, and so nothing is under way. Empty counts are
/// equal for everybody and prove nothing.
fn exact_mirror(a: &Facts, b: &Facts) -> bool {
    let read_all = |end: &Facts| end.arrived == end.received;
    read_all(a) && read_all(b) && a.sent == b.received && a.received == b.sent && total(a) != 0
}

fn total(facts: &Facts) -> u64 {
    facts.sent + facts.received
}

#[cfg(test)]
mod tests;
