//! Link groups between two hosts: what will carry lanes from one host to the other.
//!
//! An [`Engine`](engine::Engine) writes from the memory of one host into that of another: [`libfabric`], or a fake for tests
//! (fake.rs); conformance.rs is what both must do. A [`Group`](group::Group) says by SMC-R's rules what happens to links and connections, a
//! [`flow`] what is written and what has come, both without I/O or clock; a [`Carrier`](carrier::Carrier) does it over an engine.

pub mod carrier;
#[cfg(test)]
mod conformance;
pub mod engine;
#[cfg(test)]
mod fake;
pub mod flow;
pub mod group;
pub mod libfabric;
pub mod link;
pub mod memory;
pub mod queues;
pub mod words;
