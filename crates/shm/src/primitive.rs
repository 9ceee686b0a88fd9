//! Atomics that loom can replace, so that its models run the real code.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that a peer may write at any time. Under a fuzzer it does so right before we look, where the script says.
#[cfg(not(fuzzing))]
pub(crate) use AtomicU64 as SharedU64;
#[cfg(fuzzing)]
pub(crate) use hostile::SharedU64;

#[cfg(fuzzing)]
pub mod hostile {
    //! A peer that writes between two looks of ours, as a second CPU would.

    use super::{AtomicU64, Ordering};
    use core::cell::RefCell;
    use std::collections::VecDeque;

    /// A store that waits for its moment.
    pub struct Strike {
        /// Looks of ours that come before it.
        pub after: u32,
        /// What it does.
        pub store: Box<dyn Fn()>,
    }

    thread_local! {
        static SCRIPT: RefCell<VecDeque<Strike>> = const { RefCell::new(VecDeque::new()) };
    }

    /// One more store to come, counted from the one before.
    pub fn plan(strike: Strike) {
        SCRIPT.with_borrow_mut(|script| script.push_back(strike));
    }

    /// Forgets those that have not come.
    pub fn rest() {
        SCRIPT.with_borrow_mut(VecDeque::clear);
    }

    fn look() {
        let due = SCRIPT.with_borrow_mut(|script| {
            let next = script.front_mut()?;
            if next.after == 0 {
                return script.pop_front();
            }
            next.after -= 1;
            None
        });
        if let Some(strike) = due {
            (strike.store)();
        }
    }

    /// `AtomicU64`, looked at with an eye on the script.
    #[repr(transparent)]
    pub struct SharedU64(AtomicU64);

    impl SharedU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            look();
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        pub(crate) fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            ok: Ordering,
            no: Ordering,
        ) -> Result<u64, u64> {
            look();
            self.0.compare_exchange(old, new, ok, no)
        }
    }
}

/// After a read-modify-write, before a load that must not pass it.
///
/// Where each read-modify-write is a full fence, only the compiler must be told; loom and other processors get the real one.
#[inline(always)]
pub(crate) fn full_fence_after_rmw() {
    if shunpike_arch::RMW_IS_FENCE && !cfg!(loom) {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The cheap half of a pair of fences, whose other half is membarrier(2): that one has every running thread pass a
/// full fence at some point of its own, so here only the compiler must keep the order. loom knows no membarrier; a
/// fence on both sides promises the same.
#[inline(always)]
pub(crate) fn light_fence() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }
}
