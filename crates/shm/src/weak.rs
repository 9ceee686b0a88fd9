//! Functions that a libc may be without.

/// The function of libc of this name and type, if the process has it: `Option<TYPE>`. The library that is loaded into programs must not need
/// a name that a libc may be without.
#[cfg(not(miri))]
#[macro_export]
macro_rules! libc_function {
    ($name:literal: $type:ty) => {{
        let at: *const ();
        // SAFETY: loads what the loader has put into the table of addresses: a function of this type, or null.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) at,
                options(pure, nomem, nostack, preserves_flags)
            );
            core::mem::transmute::<*const (), Option<$type>>(at)
        }
    }};
}

/// The interpreter knows no assembly, nor these functions.
#[cfg(miri)]
#[macro_export]
macro_rules! libc_function {
    ($name:literal: $type:ty) => {
        None::<$type>
    };
}

/// Whether the process's libc is musl: its dynamic loader's second stage has a name that no other libc has. (gcompat gives programs
/// many of glibc's names beside.)
pub fn libc_is_musl() -> bool {
    cfg!(target_env = "musl") || libc_function!("__dls3": unsafe extern "C" fn()).is_some()
}
