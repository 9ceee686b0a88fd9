//! A table that is named once, at start-up, and read by every thread.

use core::sync::atomic::{AtomicPtr, Ordering};

/// Where such a table is.
pub struct Once<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Once<T> {
    /// This one, as long as no other is named.
    pub const fn with(table: &'static T) -> Self {
        Self(AtomicPtr::new(core::ptr::from_ref(table).cast_mut()))
    }

    /// Names it.
    pub fn set(&self, table: &'static T) {
        // Release pairs with the Acquire in `get`: a table that was filled just now is found whole.
        self.0.store(core::ptr::from_ref(table).cast_mut(), Ordering::Release);
    }

    /// The table.
    #[inline(always)]
    pub fn get(&self) -> &'static T {
        // SAFETY: what `with` or `set` was given, which is there for good. Acquire pairs with the Release in `set`.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }
}
