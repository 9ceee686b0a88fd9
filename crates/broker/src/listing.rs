//! How far a list of connections has come.

use crate::ends::SessionId;
use std::collections::VecDeque;

/// A list that is made as it is read: nothing of it is kept.
#[derive(Default)]
pub struct Listing {
    /// Arenas to come, by the first session of each.
    pub arenas: VecDeque<SessionId>,
    /// The next block of the first of them.
    pub block: u32,
    /// Whether one was listed.
    pub began: bool,
}
