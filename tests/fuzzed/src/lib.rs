//! The fuzz targets: what each does with an input. `fuzz/` lets libFuzzer look for inputs, tests/replay.rs runs those
//! that were kept, by any compiler.
//!
//! A target panics where something is wrong, and ends the process where something is very wrong.

pub mod broker;
pub mod clc;
mod kinds;
pub mod lane;
mod script;
pub mod session;
mod session_socket;

/// A target: what it does with an input.
pub type Target = fn(&[u8]);

/// Every target, by the name of its directories in fuzz/seeds and fuzz/corpus.
pub const TARGETS: [(&str, Target); 4] = [
    ("clc_decode", clc::run),
    ("session_decode", session::run),
    ("broker", broker::run),
    ("lane", lane::run),
];
