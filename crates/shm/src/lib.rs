//! Shared memory: the only crate that maps it and the only one that dereferences it.
//!
//! What is shared with whom, and what a hostile value can do, is one table, docs/shared-memory.md; each
//! module here repeats its own rows.

#![cfg_attr(not(any(test, loom, fuzzing)), no_std)]

#[cfg(feature = "readers")]
extern crate alloc;

pub mod arena;
pub mod device;
pub mod grace;
pub mod lane;
#[cfg(all(test, not(loom)))]
mod layouts;
pub mod lifecycle;
pub mod lock;
pub mod notices;
pub mod once;
pub mod pages;
pub mod place;
mod primitive;
pub mod published;
pub mod region;
pub mod tap;

#[cfg(fuzzing)]
pub use primitive::hostile;
pub use region::{Region, RegionError};
