//! What a compiler calls by itself, whatever the libc.

use core::arch::asm;
use core::ffi::c_void;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the caller's two stretches, which do not overlap.
    unsafe {
        asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack))
    };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, n: usize) -> *mut c_void {
    if to.addr().wrapping_sub(from.addr()) >= n {
        // SAFETY: forwards, no byte is written before it is read.
        return unsafe { memcpy(to, from, n) };
    }
    // SAFETY: backwards neither.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") n => _, inout("rdi") to.byte_add(n).byte_sub(1) => _,
             inout("rsi") from.byte_add(n).byte_sub(1) => _, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: i32, n: usize) -> *mut c_void {
    // SAFETY: the caller's stretch.
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") byte as u8, options(nostack))
    };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, n: usize) -> i32 {
    for at in 0..n {
        // SAFETY: within the caller's stretches. Volatile, or the loop would be made a call of this very function.
        let (a, b) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's word.
    unsafe { memcmp(one, other, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut n = 0;
    // SAFETY: there is a NUL. Volatile as above.
    while unsafe { text.add(n).read_volatile() } != 0 {
        n += 1;
    }
    n
}
