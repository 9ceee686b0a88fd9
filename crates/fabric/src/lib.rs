//! What will carry lanes from one host to another.
//!
//! An [`Engine`](engine::Engine) writes from the memory of one host into that of another: [`libfabric`], or a fake for tests
//! (fake.rs); conformance.rs is what both must do.

#[cfg(test)]
mod conformance;
pub mod engine;
#[cfg(test)]
mod fake;
pub mod libfabric;
pub mod memory;
