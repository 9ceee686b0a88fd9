//! The functions behind ours.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::imports;

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
        let at = imports::next(self.name)
            .or_else(|| local(self.name))
            .or_else(|| plainer(self.name))
            .unwrap_or(imports::missing as *mut c_void);
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// syscall(2), libc's own.
///
/// # Safety
/// As the call itself.
pub unsafe fn by_number(number: c_long, [a, b, c, d, e, f]: Arguments) -> c_long {
    type Function = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    static REAL: Real = Real::new(c"syscall");
    // SAFETY: glibc's syscall takes its arguments where this type has them, and looks at all of them itself.
    let real: Function = unsafe { core::mem::transmute(REAL.address()) };
    // SAFETY: the program's arguments, handed on unchanged.
    unsafe { real(number, a, b, c, d, e, f) }
}

/// What a name of large files means: musl has such names no longer, but its loader gives old programs the plain ones.
fn plainer(name: &CStr) -> Option<*mut c_void> {
    let bytes = name.to_bytes();
    let at = bytes.windows(2).position(|part| part == b"64")?;
    let mut plain = [0; 32];
    let rest = &bytes[at + 2..];
    plain.get_mut(..at)?.copy_from_slice(&bytes[..at]);
    // What follows is 0, and one at least is left.
    plain.get_mut(at..at + rest.len() + 1)?[..rest.len()].copy_from_slice(rest);
    imports::next(CStr::from_bytes_until_nul(&plain).ok()?)
}

/// The definition in a library that was loaded for somebody alone (RTLD_LOCAL), where the search does not lead: a plugin's
/// liburing.
fn local(name: &CStr) -> Option<*mut c_void> {
    /// Names of objects that may define it. They are opened when the loader's list is no longer held.
    struct Found([[u8; 256]; 4], usize);
    // SAFETY: only the loader calls it, as dl_iterate_phdr(3) says.
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader's description of an object, with a NUL-terminated name.
        let name = unsafe { CStr::from_ptr((*info).dlpi_name) }.to_bytes_with_nul();
        // SAFETY: the one below, of which nobody else has a reference meanwhile.
        let found = unsafe { &mut *found.cast::<Found>() };
        if name.windows(5).any(|part| part == b"uring")
            && let Some(slot) = found.0.get_mut(found.1).and_then(|slot| slot.get_mut(..name.len()))
        {
            slot.copy_from_slice(name);
            found.1 += 1;
        }
        0
    }
    let mut found = Found([[0; 256]; 4], 0);
    // SAFETY: the callback has that signature and gets `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    found.0.iter().take(found.1).find_map(|path| {
        // SAFETY: a NUL-terminated name. The library is kept, as the address is.
        unsafe { imports::definition_in(path.as_ptr().cast(), name) }
    })
}

/// Defines hooks: an exported function for each, and `real::NAME(args)` for what it covers.
macro_rules! hooks {
    ($($(#[doc = $doc:expr])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        /// Where that is.
        #[allow(non_upper_case_globals, dead_code, reason = "libc's own names; few are asked for by themselves")]
        pub(crate) mod behind {
            $(
                pub(crate) static $name: $crate::real::Real = match core::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => $crate::real::Real::new(name),
                    Err(_) => panic!("a name without NUL"),
                };
            )*
        }
        /// What the hooks of this file cover.
        #[allow(clippy::too_many_arguments, dead_code, non_snake_case, reason = "libc's own names and signatures; some only name another hook")]
        pub(crate) mod covered {
            use super::*;
            $(
                /// The real function.
                #[inline(always)]
                pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                    let real: unsafe extern "C-unwind" fn($($ty),*) -> $ret =
                        // SAFETY: libc's function of that name has this signature (glibc's headers).
                        unsafe { core::mem::transmute(behind::$name.address()) };
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

/// The integer arguments of a stub that travel in registers. What the function does not have, or the program did not
/// give, is what happened to be there.
pub type Arguments = [usize; 6];

/// Where a stub goes on after its look.
pub trait Onward {
    /// A function that takes the real one's place for this call; `None`: the real one.
    fn instead(self) -> Option<*mut c_void>;
}

impl Onward for () {
    fn instead(self) -> Option<*mut c_void> {
        None
    }
}

impl Onward for Option<*mut c_void> {
    fn instead(self) -> Self {
        self
    }
}

/// Defines hooks that only look before the real function runs, and jump there with every argument, however many
/// and of whatever kind, as it is: `stubs! { LOOK: NAME, ... }`. LOOK gets the [`Arguments`]. It returns nothing, or
/// ([`Onward`]) what to jump to instead, which gets the same arguments.
macro_rules! stubs {
    ($look:ident: $($name:ident,)*) => {$(
        #[doc = concat!(stringify!($name), ", after a look.")]
        ///
        /// # Safety
        /// As libc's function of that name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn look(
                first: usize,
                second: usize,
                third: usize,
                fourth: usize,
                fifth: usize,
                sixth: usize,
            ) -> *mut core::ffi::c_void {
                static REAL: $crate::real::Real = match core::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => $crate::real::Real::new(name),
                    Err(_) => panic!("a name without NUL"),
                };
                let looked = $look([first, second, third, fourth, fifth, sixth]);
                $crate::real::Onward::instead(looked).unwrap_or_else(|| REAL.address())
            }
            shunpike_arch::look_and_jump!(look)
        }
    )*};
}
