//! Models of the lane's protocol that run the real code of `shm` under loom: every order in which two or three
//! threads can meet, with every value that a load may see by the C11 memory model.
//!
//! Each model comes with broken twins: one rule of models/lane.pml, wake.pml or cq.pml is not kept, and the test
//! demands that loom finds the run in which that does harm. Run by ci/loom; without `--cfg loom` this is empty.
#![cfg(loom)]

mod bell;
mod cq;
mod grace;
mod lane;
mod loans;
mod short;
mod wake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fewer runs than this mean that the threads of a model never met.
const FEWEST: usize = 5;

/// Runs `model` in every order that loom finds, and fails if that was next to nothing.
fn explore(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let mut builder = loom::model::Builder::new();
    // Three forced switches find all that is known to go wrong here; LOOM_MAX_PREEMPTIONS looks further.
    builder.preemption_bound.get_or_insert(3);
    builder.max_branches = 5_000;
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    println!("{name}: {runs} runs");
    assert!(runs >= FEWEST, "{name}: only {runs} runs: the model explores nothing");
}
