//! Shared memory: the only crate that maps it and the only one that dereferences it.
//!
//! What is shared with whom, and what a hostile value can do, is one table, docs/shared-memory.md; each
//! module here repeats its own rows.
//!
//! [`lane`] is a DMB: its words and its ring. [`arena`] has the blocks of a process's connections, [`pages`] what the broker
//! makes. [`device`] is how a program gets a DMB and tells of what it did there:
//!
//! ```
//! use rustix::fd::AsFd;
//! use shunpike_shm::device::{ClientDevice, Own};
//! use shunpike_shm::lane::{Cursor, Dmb};
//!
//! let memory = Own::make(0)?;
//! let receiver = Dmb::new(Own::map(memory.as_fd(), Dmb::len(0))?, 1).expect("a DMB");
//! let sender = Dmb::new(Own::attach(memory.as_fd(), 0, Dmb::len(0))?, 1).expect("the same one");
//! receiver.words().grant(1);
//! assert!(sender.words().begin(1, 0, sender.window()));
//!
//! // SAFETY: nobody has published there yet; five bytes are ours.
//! unsafe { sender.fill(0, b"hello".as_ptr(), 5) };
//! let begin = Cursor::new(1, 0);
//! let end = Own::publish(sender.words(), begin, 5).expect("the receiver has not stopped it");
//! assert_eq!(receiver.words().prod(), end);
//! assert_eq!(Own::consume(receiver.words(), begin, 5), Ok(end));
//! # Ok::<(), shunpike_shm::RegionError>(())
//! ```

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
