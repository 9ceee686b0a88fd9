//! A list of bounded length that needs no allocation.

use core::fmt;

/// Up to `N` items, in order.
#[derive(Copy, Clone)]
pub struct List<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> List<T, N> {
    /// An empty list.
    pub const fn new() -> Self {
        List { items: [None; N], len: 0 }
    }

    /// Adds an item at the end; returns false, and adds nothing, when the list is full.
    #[must_use]
    pub fn push(&mut self, item: T) -> bool {
        match self.items.get_mut(self.len) {
            Some(place) => {
                *place = Some(item);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// The items, first to last.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.items.iter().copied().flatten()
    }

    /// The item at `index`, or `None` from [`List::len`] on.
    pub fn at(&self, index: usize) -> Option<T> {
        self.items.get(index).copied().flatten()
    }

    /// How many items there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more fit.
    pub const fn room(&self) -> usize {
        N - self.len
    }
}

impl<T: Copy, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        List::new()
    }
}

impl<T: Copy + PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Copy + Eq, const N: usize> Eq for List<T, N> {}

impl<T: Copy + fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_so_many_and_no_more() {
        let mut list = List::<u8, 2>::new();
        assert!(list.is_empty());
        assert!(list.push(7) && list.push(8));
        assert!(!list.push(9));
        assert_eq!((list.len(), list.room()), (2, 0));
        assert_eq!(list.iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!((list.at(1), list.at(2)), (Some(8), None));
    }
}
