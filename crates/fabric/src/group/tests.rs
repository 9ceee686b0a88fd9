use super::*;
use crate::engine::RToken;

const AT: &str = "10.0.0.2:7";

fn ring() -> Ring {
    Ring { token: RToken { key: 1, address: 0 }, offset: 0, size: 4096 }
}

fn slot(number: u8) -> Slot {
    Slot::new(number).unwrap()
}

fn on(group: &mut Group, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    group.on(event, &mut actions);
    actions
}

const LINK: LinkId = LinkId { number: 0, life: 1 };

fn delete(deleted: Vec<(Slot, u32)>) -> Event {
    Event::Said(Llc::DeleteLink { link: LINK, seen: Vec::new(), deleted })
}

/// A group whose first link stands there, in its first life, and which has no other.
fn standing(role: Role, at: Standing) -> Group {
    let mut group = Group::new(role, Settings { links: 1, ..Settings::default() }, 0);
    let is_server = role != Role::Client;
    let confirm = if is_server { Word::LinkConfirmed } else { Word::ConfirmLink };
    let add = if is_server {
        Event::Tick(0)
    } else {
        Event::Said(Llc::AddLink { link: LINK, at: AT.parse().unwrap() })
    };
    let events =
        [add, Event::Connected(LINK), Event::Word(0, confirm), Event::Tick(30_000), Event::Lost(LINK)];
    let order =
        [Standing::Connecting, Standing::Confirming, Standing::Up, Standing::Testing, Standing::Fenced];
    for (event, to) in events.into_iter().zip(order) {
        if at == group.link(0) {
            break;
        }
        on(&mut group, event);
        assert_eq!(group.link(0), to);
    }
    assert_eq!(group.link(0), at);
    group
}

/// What a message or word makes of a link that stands there: "ends" the group, "-" nothing, or where the link stands then.
fn outcome(role: Role, at: Standing, event: Event) -> String {
    let mut group = standing(role, at);
    let actions = on(&mut group, event);
    match (group.has_ended(), group.link(0)) {
        (true, _) => "ends".into(),
        (false, to) if to == at && actions.is_empty() => "-".into(),
        (false, to) => format!("{to:?}"),
    }
}

#[test]
fn each_word_and_message_in_each_standing() {
    let server = Role::Server(AT.parse().unwrap());
    let add = |life| Event::Said(Llc::AddLink { link: LinkId { number: 0, life }, at: AT.parse().unwrap() });
    let second =
        || Event::Said(Llc::AddLink { link: LinkId { number: 2, life: 9 }, at: AT.parse().unwrap() });
    let old = || Event::Lost(LinkId { number: 0, life: 9 });
    let word = |word| Event::Word(0, word);
    let rows: [(Role, Event, [&str; 6]); 18] = [
        (Role::Client, add(2), ["Connecting", "ends", "ends", "ends", "ends", "ends"]),
        (Role::Client, add(1), ["Connecting", "ends", "ends", "ends", "ends", "ends"]),
        (Role::Client, second(), ["ends"; 6]),
        (server, add(2), ["ends"; 6]),
        (Role::Client, word(Word::ConfirmLink), ["-", "Up", "Up", "-", "-", "-"]),
        (server, word(Word::ConfirmLink), ["ends"; 6]),
        (server, word(Word::LinkConfirmed), ["-", "Up", "Up", "-", "-", "-"]),
        (Role::Client, word(Word::LinkConfirmed), ["ends"; 6]),
        (server, word(Word::TestLink), ["-", "-", "-", "Up", "Testing", "-"]),
        (server, word(Word::LinkTested), ["-"; 6]),
        (server, word(Word::RkeyDeleted(slot(3))), ["ends"; 6]),
        (server, delete(Vec::new()), ["ends", "Down", "Down", "Down", "Down", "Down"]),
        (Role::Client, delete(Vec::new()), ["ends", "Down", "Down", "Down", "Down", "Down"]),
        (server, old(), ["-"; 6]),
        (server, Event::Lost(LINK), ["-", "Fenced", "Fenced", "Fenced", "Fenced", "-"]),
        (server, Event::Heard(0), ["-", "-", "-", "-", "Up", "-"]),
        (Role::Client, Event::ControlLost, ["ends"; 6]),
        (Role::Client, Event::Broken, ["ends"; 6]),
    ];
    for (role, event, expected) in rows {
        for (at, expected) in Standing::ALL.into_iter().zip(expected) {
            let said = outcome(role, at, event.clone());
            // "Up" from Testing by what was heard changes the state and asks for nothing.
            assert_eq!(said, expected, "{event:?} at {role:?} in {at:?}");
        }
    }
}

#[test]
fn each_event_of_a_ring_in_each_state() {
    let name =
        |size| Event::Said(Llc::ConfirmRkey { slot: slot(3), serial: 9, ring: Ring { size, ..ring() } });
    let take = || Event::Said(Llc::DeleteRkey { slot: slot(3) });
    let answer = || Event::Word(0, Word::RkeyDeleted(slot(3)));
    let up = || standing(Role::Client, Standing::Up);
    let open = || Event::Open(slot(3), ring());
    let ends = |events: Vec<Event>| {
        let mut group = up();
        for event in events {
            on(&mut group, event);
        }
        group.has_ended()
    };
    // This end's ring: free, named, asked for.
    assert!(ends(vec![answer()]));
    assert!(ends(vec![open(), answer()]));
    assert!(!ends(vec![open(), Event::Close(slot(3)), answer()]));
    assert!(ends(vec![open(), Event::Close(slot(3)), answer(), answer()]));
    assert!(!ends(vec![Event::Close(slot(3))]), "what is not there is not closed");
    let mut group = up();
    on(&mut group, open());
    assert_eq!(on(&mut group, Event::Close(slot(3))), [Action::Say(Llc::DeleteRkey { slot: slot(3) })]);
    assert_eq!(on(&mut group, Event::Close(slot(3))), [], "asked once");
    assert_eq!(on(&mut group, answer()), [Action::Release(slot(3))]);
    assert_eq!(group.connections(), 0);
    // The peer's: unknown, named, owed.
    assert!(ends(vec![take()]));
    assert!(!ends(vec![name(4096)]) && !ends(vec![name(4096), take()]));
    assert!(ends(vec![name(4096), name(4096)]));
    assert!(ends(vec![name(4096), take(), take()]), "answered, and so it is unknown");
    assert!(ends(vec![name(4095)]) && ends(vec![name(1 << 24)]) && ends(vec![name(0)]));
}

#[test]
fn an_answer_goes_through_the_connections_own_link_and_waits_for_its_fence() {
    let mut group = standing(Role::Client, Standing::Up);
    on(&mut group, Event::Open(slot(3), ring()));
    let theirs = Event::Said(Llc::ConfirmRkey { slot: slot(3), serial: 1, ring: ring() });
    assert_eq!(on(&mut group, theirs), [Action::Write(slot(3), ring())]);
    on(&mut group, Event::Lost(LINK));
    let asked = on(&mut group, Event::Said(Llc::DeleteRkey { slot: slot(3) }));
    assert_eq!(asked, [Action::Forget(slot(3))], "no answer yet");
    let moved = on(&mut group, delete(Vec::new()));
    assert_eq!(moved, [], "there is no other link");
    let life = |life| LinkId { number: 0, life };
    on(&mut group, Event::Said(Llc::AddLink { link: life(2), at: AT.parse().unwrap() }));
    let up = on(&mut group, Event::Word(0, Word::ConfirmLink));
    assert!(up.contains(&Action::Tell(0, Word::RkeyDeleted(slot(3)))), "{up:?}");
    // That link goes, too, and nobody knows whether the answer has come: it is said again.
    let lost = on(&mut group, Event::Lost(life(2)));
    assert_eq!(lost.last(), Some(&Action::SayDelete(life(2), vec![(slot(3), 1)])));
}

#[test]
fn an_answer_in_delete_link_is_for_the_use_of_the_slot_that_it_names() {
    for (serial, is_free) in [(1, false), (2, true), (3, false)] {
        let mut group = standing(Role::Client, Standing::Up);
        for _ in 0..2 {
            on(&mut group, Event::Open(slot(3), ring()));
            on(&mut group, Event::Close(slot(3)));
            if group.connections[&slot(3)].ours == Ours::Asked(1) {
                on(&mut group, Event::Word(0, Word::RkeyDeleted(slot(3))));
            }
        }
        let actions = on(&mut group, delete(vec![(slot(3), serial)]));
        assert_eq!(actions.contains(&Action::Release(slot(3))), is_free, "{serial}: {actions:?}");
    }
}

#[test]
fn a_group_has_as_many_connections_as_it_may() {
    for most in [1, 16, 255] {
        let mut group = Group::new(Role::Client, Settings { connections: most, ..Settings::default() }, 0);
        for _ in 0..most {
            let slot = group.free_slot().expect("room");
            on(&mut group, Event::Open(slot, ring()));
        }
        assert_eq!((group.free_slot(), group.connections()), (None, most));
    }
}

#[test]
fn a_group_without_a_link_ends_in_time() {
    let mut group = Group::new(Role::Client, Settings::default(), 5000);
    on(&mut group, Event::Open(slot(1), ring()));
    on(&mut group, Event::Tick(7000));
    assert!(!group.has_ended());
    let actions = on(&mut group, Event::Tick(7001));
    assert!(group.has_ended());
    assert_eq!(actions, [Action::Stop(slot(1)), Action::Release(slot(1)), Action::End]);
    assert_eq!(on(&mut group, Event::Tick(9000)), []);
}

#[test]
fn a_link_that_is_given_up_stops_its_connections_first_and_moves_them_last() {
    let settings = Settings::default();
    let mut group = Group::new(Role::Server(AT.parse().unwrap()), settings, 0);
    on(&mut group, Event::Tick(0));
    let second = LinkId { number: 1, life: 1 };
    for link in [LINK, second] {
        on(&mut group, Event::Connected(link));
        on(&mut group, Event::Word(link.number, Word::LinkConfirmed));
    }
    on(&mut group, Event::Open(slot(1), ring()));
    on(&mut group, Event::Said(Llc::ConfirmRkey { slot: slot(1), serial: 1, ring: ring() }));
    let seen = Seen { slot: slot(1), sequence: 5, cursor: 99 };
    let said = Llc::DeleteLink { link: LINK, seen: vec![seen], deleted: Vec::new() };
    let actions = on(&mut group, Event::Said(said));
    let expected = [
        Action::Stop(slot(1)),
        Action::CloseLink(0),
        Action::SayDelete(LINK, Vec::new()),
        Action::Go(slot(1), 1, seen),
    ];
    assert_eq!(actions, expected);
    // Of a connection that the peer writes into nothing may be left out.
    let said = Llc::DeleteLink { link: second, seen: Vec::new(), deleted: Vec::new() };
    on(&mut group, Event::Said(said));
    assert!(group.has_ended());
}
