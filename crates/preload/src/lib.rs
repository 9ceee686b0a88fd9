//! libshunpike.so: libc's names for sockets, mapped onto core.
//!
//! Each hook is a few lines: is the descriptor ours? then core; else the real function, found behind us in
//! the loader's order. The `hooks!` blocks are the one list of what is interposed; the loader's
//! export map derives from them, and a test compares it with what users' programs import.
//!
//! ```ignore
//! hooks! {
//!     /// close(2)
//!     fn close(fd: c_int) -> c_int {
//!         if table::is_none(fd) { covered::close(fd) } else { close_known(fd) } // `covered` is libc's own
//!     }
//! }
//! ```

#![allow(unknown_lints, reason = "stable Rust does not know the next one yet")]
#![allow(
    invalid_runtime_symbol_definitions,
    reason = "cancellation unwinds through the hooks, as through libc's own calls"
)]

#[macro_use]
mod real;
mod answers;
mod bypass;
mod cancel;
mod children;
mod control;
mod data;
mod errno;
mod exec;
mod host;
mod identity;
mod imports;
mod indirect;
mod kept;
mod lifecycle;
mod memory;
mod readiness;
mod removed;
mod signals;
mod start;
mod stdio;
mod streams;
mod syscall;
mod this_libc;
mod thread;
mod vforked;
