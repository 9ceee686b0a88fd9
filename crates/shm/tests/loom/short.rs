//! A short message beside the producer's word: read whole, or not at all (lane::short).

use loom::sync::Arc;
use loom::thread;
use shunpike_shm::lane::{Cursor, Words};

use crate::explore;

#[derive(Copy, Clone, PartialEq)]
enum Rule {
    Kept,
    TagUsedTwice,
}

/// Two messages of a byte each, the second of which comes at any time while the first is read.
fn short(rule: Rule) {
    explore("short", move || {
        let words = Arc::new(Words::new());
        words.grant(1);
        assert!(words.begin(1, 0, 16384));
        let sender = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.accompany(0, 1, [1; 3]);
                let at = words.publish(Cursor::new(1, 0), 1).expect("nobody stops");
                let place = if rule == Rule::TagUsedTwice { 0 } else { 1 };
                words.accompany(place, 1, [2; 3]);
                words.publish(at, 1).expect("nobody stops");
            })
        };
        if words.prod().offset() >= 1
            && let Some(bytes) = words.accompanied(0, 1)
        {
            assert_eq!(bytes, [1; 3]);
        }
        sender.join().unwrap();
        if rule == Rule::Kept {
            assert_eq!((words.accompanied(0, 1), words.accompanied(1, 1)), (None, Some([2; 3])));
        }
    });
}

#[test]
fn a_short_message_is_read_whole_or_not_at_all() {
    short(Rule::Kept);
}

#[test]
#[should_panic(expected = "assertion")]
fn broken_tag_used_twice() {
    short(Rule::TagUsedTwice);
}
