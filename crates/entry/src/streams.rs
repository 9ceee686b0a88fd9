//! stdio's streams read and write by calls that enter this library: a connection at their numbers keeps its lane.

pub use shunpike_core::conn::duplicated;
