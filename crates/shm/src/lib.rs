//! Shared memory: the only crate that maps it and the only one that dereferences it.
//!
//! What is shared with whom, and what a hostile value can do, is one table, docs/shared-memory.md; each
//! module here repeats its own rows.

#[macro_use]
mod weak;
pub mod arena;
pub mod grace;
pub mod lane;
pub mod lifecycle;
pub mod lock;
pub mod notices;
pub mod pages;
pub mod place;
mod primitive;
pub mod published;
pub mod region;
pub mod tap;

#[cfg(fuzzing)]
pub use primitive::hostile;
pub use region::{Region, RegionError};
pub use weak::libc_is_musl;
