//! Reaches programs that no preloaded library does: static ones, and Go.
//!
//! [`image`] says what a program's file is, [`sites`] where it makes system calls and how a jump fits there, [`patch`] what is to be
//! written, [`inject`] writes it into the process, which [`trace`] executes. The tracer is gone before the program's first instruction.
//! What is entered then is [`blob`]. All sites are patched, or none: then the program runs as it is, for a numbered [`reason`].
//!
//! ```no_run
//! use shunpike_inject::{image, sites};
//!
//! let file = std::fs::read("/usr/local/bin/server").expect("it can be read");
//! let image = image::read(&file).expect("a program of this kind");
//! println!("{} system calls", sites::find(&image, &file).expect("all can be patched").len());
//! ```

pub mod attach;
pub mod blob;
pub mod cache;
pub mod image;
pub mod inject;
pub mod library;
pub mod moved;
pub mod patch;
pub mod program;
pub mod reason;
pub mod remote;
pub mod sites;
pub mod trace;
