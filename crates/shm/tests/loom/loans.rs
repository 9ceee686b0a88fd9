//! Loans: the receiver reads the sender's memory, or the ring, and each byte as it was when it was sent.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, Ordering};
use loom::thread;
use shunpike_shm::lane::loans::{Lent, Loan, Witness};
use shunpike_shm::lane::{Cursor, Words};

use crate::explore;

const START: Cursor = Cursor::new(1, 0);
const SENT: u8 = 7;
const REUSED: u8 = 9;
const WITNESS: Witness = Witness { at: 1, value: [2, 3] };

/// One byte, lent.
struct Lane {
    words: Words,
    ring: UnsafeCell<u8>,
    /// The program's: it writes there again as soon as it may, also while the receiver reads in vain.
    memory: AtomicU8,
}

#[derive(Copy, Clone, PartialEq)]
enum Rule {
    Kept,
    NoLookAfter,
    LookBefore,
    RecalledBeforeCopy,
    ReusedBeforeRecalled,
}

/// The sender takes its loan back and reuses the memory, while the receiver reads.
fn recall(rule: Rule) {
    explore("recall", move || {
        let words = Words::new();
        words.grant(1);
        assert!(words.begin(1, 0, 1));
        words.announce(WITNESS);
        let lane = Arc::new(Lane { words, ring: UnsafeCell::new(0), memory: AtomicU8::new(SENT) });
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.words.lend(0, Loan { at: 0, len: 1, from: 0 });
                lane.words.publish(START, 1).expect("nobody stops");
                if rule == Rule::ReusedBeforeRecalled {
                    lane.memory.store(REUSED, Ordering::Relaxed);
                }
                if rule == Rule::RecalledBeforeCopy {
                    lane.words.recalled(0);
                }
                // SAFETY: loom checks that nobody else is at this byte.
                lane.ring.with_mut(|at| unsafe { *at = SENT });
                if rule != Rule::RecalledBeforeCopy {
                    lane.words.recalled(0);
                }
                lane.memory.store(REUSED, Ordering::Relaxed);
            })
        };
        while lane.words.prod() == START {
            thread::yield_now();
        }
        assert_eq!(lane.words.lent(), Lent::of(1));
        let early = rule == Rule::LookBefore && lane.words.stands(0);
        let copy = lane.memory.load(Ordering::Relaxed);
        let stood = match rule {
            Rule::NoLookAfter => true,
            Rule::LookBefore => early,
            _ => lane.words.stands(0),
        };
        // SAFETY: loom checks that nobody writes there now.
        let byte = if stood { copy } else { lane.ring.with(|at| unsafe { *at }) };
        assert_eq!(byte, SENT, "another byte than was sent");
        lane.words.consume(START, 1).expect("nobody takes back");
        sender.join().unwrap();
    });
}

#[test]
fn bytes_are_as_sent_while_the_loan_is_recalled() {
    recall(Rule::Kept);
}

#[test]
#[should_panic(expected = "another byte than was sent")]
fn broken_no_look_after_the_copy() {
    recall(Rule::NoLookAfter);
}

#[test]
#[should_panic(expected = "another byte than was sent")]
fn broken_look_before_the_copy() {
    recall(Rule::LookBefore);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_recalled_before_the_bytes_are_in_the_ring() {
    recall(Rule::RecalledBeforeCopy);
}

#[test]
#[should_panic(expected = "another byte than was sent")]
fn broken_reused_before_recalled() {
    recall(Rule::ReusedBeforeRecalled);
}

#[derive(Copy, Clone, PartialEq)]
enum End {
    Kept,
    ReusedBeforeConsumed,
    ConsumedBeforeCopy,
    SlotReusedBeforeConsumed,
}

/// The receiver consumes what was lent; then the sender reuses memory and slot, for a second loan.
fn consumption(rule: End) {
    explore("consumption", move || {
        let words = Words::new();
        words.grant(1);
        assert!(words.begin(1, 0, 4));
        words.announce(WITNESS);
        let memory: [UnsafeCell<u8>; 2] = core::array::from_fn(|_| UnsafeCell::new(SENT));
        let lane = Arc::new((words, memory));
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                let (words, memory) = &*lane;
                let mut at = START;
                for number in 0..3u32 {
                    // Two slots, and memory for two loans.
                    let free = |slots: u64| u64::from(number) < slots + words.cons().offset();
                    while rule != End::SlotReusedBeforeConsumed && !free(2) {
                        thread::yield_now();
                    }
                    if rule != End::ReusedBeforeConsumed || number == 2 {
                        // SAFETY: loom checks that nobody else is at this byte.
                        memory[number as usize % 2].with_mut(|to| unsafe { *to = SENT + number as u8 });
                    }
                    words.lend(number, Loan { at: at.offset(), len: 1, from: u64::from(number % 2) });
                    at = words.publish(at, 1).expect("nobody stops");
                    if rule == End::ReusedBeforeConsumed {
                        // SAFETY: as above.
                        memory[number as usize % 2].with_mut(|to| unsafe { *to = REUSED });
                    }
                }
            })
        };
        let (words, memory) = &*lane;
        let mut at = START;
        for number in 0..3u32 {
            while words.prod().offset() == at.offset() {
                thread::yield_now();
            }
            let loan = words.loan(number);
            assert_eq!(loan.at, at.offset(), "another loan");
            let next = if rule == End::ConsumedBeforeCopy { words.consume(at, 1) } else { Ok(at) };
            // SAFETY: as above.
            let byte = memory[loan.from as usize].with(|from| unsafe { *from });
            assert_eq!(byte, SENT + number as u8);
            let next = if rule == End::ConsumedBeforeCopy { next } else { words.consume(at, 1) };
            at = next.expect("nobody takes back");
        }
        sender.join().unwrap();
    });
}

#[test]
fn memory_and_slots_are_reused_once_consumed() {
    consumption(End::Kept);
}

#[test]
#[should_panic]
fn broken_reused_before_consumed() {
    consumption(End::ReusedBeforeConsumed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_consumed_before_copied() {
    consumption(End::ConsumedBeforeCopy);
}

#[test]
#[should_panic]
fn broken_slot_reused_before_consumed() {
    consumption(End::SlotReusedBeforeConsumed);
}
