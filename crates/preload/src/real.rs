//! The functions behind ours.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A libc function, looked up once, on first use: a constructor that runs before ours may call a hook.
pub struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    /// The next definition of `name` in the loader's order.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address. A libc without it (a future or foreign one) gives a function that fails with ENOSYS.
    #[inline(always)]
    pub fn address(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.resolve() } else { at }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: a NUL-terminated name; RTLD_NEXT searches the objects after this one.
        let mut at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if at.is_null() {
            at = missing as *mut c_void;
        }
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

extern "C" fn missing() -> isize {
    crate::set_errno(libc::ENOSYS);
    -1
}

/// Defines hooks: an exported function for each, and `real::NAME(args)` for what it covers.
macro_rules! hooks {
    ($($(#[doc = $doc:expr])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        /// What the hooks of this file cover.
        #[allow(clippy::too_many_arguments, dead_code, non_snake_case, reason = "libc's own names and signatures; some only name another hook")]
        pub(crate) mod covered {
            use super::*;
            $(
                /// The real function.
                #[inline(always)]
                pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                    static REAL: $crate::real::Real = match core::ffi::CStr::from_bytes_with_nul(
                        concat!(stringify!($name), "\0").as_bytes(),
                    ) {
                        Ok(name) => $crate::real::Real::new(name),
                        Err(_) => panic!("a name without NUL"),
                    };
                    // SAFETY: libc's function of that name has this signature (glibc's headers).
                    let real: unsafe extern "C-unwind" fn($($ty),*) -> $ret =
                        unsafe { core::mem::transmute(REAL.address()) };
                    // SAFETY: the program's arguments, handed on unchanged.
                    unsafe { real($($arg),*) }
                }
            )*
        }
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// As libc's function of that name.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, non_snake_case, reason = "libc's own")]
            pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: what the program promises libc, it promises us.
                unsafe { $body }
            }
        )*
    };
}
