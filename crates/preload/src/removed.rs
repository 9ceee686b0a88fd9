//! A library whose file is gone, while programs that have it run on (the package was removed, or they have another root since).
//! What such a program executes must not be told to load it: the loader would complain, on the standard error, in each.
//!
//! So its name is taken out of the environment that is handed on, where it lies: the string stays where and as long as it is, as it is the
//! program's to free. By calls that fail where memory cannot be read or written (a bad pointer is the kernel's to refuse), and that need
//! no handler of ours: a child of vfork() comes here, too.

use core::ffi::c_char;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use shunpike_arch::weak_function;
use shunpike_core::sys;

use crate::children;

const NAME: &[u8] = b"/libshunpike.so";
const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Longest name of ours that is looked for, and longest variable that is looked through.
const LONGEST_NAME: usize = 256;
const LONGEST: usize = 4096;
/// Most variables that are looked at.
const MOST: usize = 1 << 16;

/// What LD_PRELOAD calls us, ended by a NUL; none where something else had us loaded. Written at start-up, when there is one thread.
static PATH: [AtomicU8; LONGEST_NAME] = [const { AtomicU8::new(0) }; LONGEST_NAME];
static LEN: AtomicUsize = AtomicUsize::new(0);
/// The program has asked for a filter of system calls: no call of ours any more.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// The program is about to have a filter of system calls.
pub fn confine() {
    CONFINED.store(true, Ordering::Relaxed);
}

fn may_look() -> bool {
    LEN.load(Ordering::Relaxed) != 0 && !CONFINED.load(Ordering::Relaxed)
}

/// Where `preloaded` (the value of LD_PRELOAD) names us: from where to where.
fn ours(preloaded: &[u8]) -> Option<(usize, usize)> {
    let mut start = 0;
    for name in preloaded.split(|byte| b" :".contains(byte)) {
        if name.starts_with(b"/") && name.ends_with(NAME) {
            return Some((start, start + name.len()));
        }
        start += name.len() + 1;
    }
    None
}

/// Notes, at start-up, by which name we were loaded.
pub fn note(preloaded: &[u8]) {
    let Some(name) = ours(preloaded).and_then(|(start, end)| preloaded.get(start..end)) else { return };
    if name.len() < LONGEST_NAME {
        PATH.iter().zip(name).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
        LEN.store(name.len(), Ordering::Relaxed);
    }
}

/// Whether the file of that name is gone. One look at a name.
fn is_gone() -> bool {
    let len = LEN.load(Ordering::Relaxed);
    let mut path = [0; LONGEST_NAME];
    path.iter_mut().zip(&PATH).take(len).for_each(|(to, byte)| *to = byte.load(Ordering::Relaxed));
    // SAFETY: a NUL-terminated name, as `note` leaves room for the NUL.
    let looked = unsafe {
        sys::call(
            libc::SYS_faccessat,
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            libc::F_OK as usize,
            0,
            0,
            0,
        )
    };
    len != 0 && looked.is_err_and(|errno| [libc::ENOENT, libc::ENOTDIR].contains(&errno.raw_os_error()))
}

/// Before a program is executed with the environment `environment`.
pub fn before_exec(environment: *const *const c_char) {
    if !may_look() || environment.is_null() || !is_gone() || children::is_filtered() {
        return;
    }
    for index in 0..MOST {
        let mut variable = [0; size_of::<usize>()];
        let at = environment.addr().wrapping_add(index * size_of::<usize>());
        let variable = if children::copy(at, &mut variable) { usize::from_ne_bytes(variable) } else { 0 };
        if variable == 0 {
            return;
        }
        let mut start = [0; VARIABLE.len()];
        if children::copy(variable, &mut start) && start == VARIABLE {
            take_out(variable + VARIABLE.len());
        }
    }
}

/// Where this program's environment is; 0: unknown.
pub fn environ() -> usize {
    let Some(at) = weak_function!("__environ": unsafe extern "C" fn()) else { return 0 };
    // SAFETY: a variable of libc's, where it has one: a pointer, read as the call that follows reads it.
    unsafe { (at as *const usize).read_volatile() }
}

/// Takes our name out of the value at `at`.
fn take_out(at: usize) {
    const PAGE: usize = 4096;
    let mut value = [0; LONGEST];
    // What lies behind the string's end may be on a page that is not there.
    let first = LONGEST.min(PAGE - at % PAGE);
    if !children::copy(at, &mut value[..first]) {
        return;
    }
    let is_whole = |value: &[u8]| value.contains(&0);
    if !is_whole(&value[..first]) && !children::copy(at + first, &mut value[first..]) {
        return;
    }
    let Some(len) = value.iter().position(|byte| *byte == 0) else { return };
    let Some((start, end)) = ours(&value[..len]) else { return };
    value[start..end].fill(b':');
    if value[..len].iter().all(|byte| b" :".contains(byte)) {
        value[0] = 0;
    }
    write(at, &value[..len]);
}

/// Writes to the program's memory, where that may be written to.
fn write(at: usize, from: &[u8]) -> bool {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(at), iov_len: local.iov_len };
    let (ours, theirs) = ((&raw const local) as usize, (&raw const remote) as usize);
    // SAFETY: both vectors live through the call; what is written of the program's is a string that it hands to exec, whose length stays.
    let moved = unsafe { sys::call(libc::SYS_process_vm_writev, sys::pid() as usize, ours, 1, theirs, 1, 0) };
    moved == Ok(local.iov_len)
}
