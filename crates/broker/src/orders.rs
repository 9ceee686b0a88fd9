//! What the operator tells a broker while it serves.

use rustix::fd::BorrowedFd;

/// What the operator has told a broker to do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// To end.
    End,
    /// To read its policy again.
    Reload,
    /// Nothing.
    Nothing,
}

/// How the operator's orders come.
#[derive(Copy, Clone)]
pub struct Orders<'a> {
    /// Readable when there is one.
    pub fd: BorrowedFd<'a>,
    /// Takes it.
    pub take: &'a dyn Fn() -> Order,
}
