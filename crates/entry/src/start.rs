//! Start-up, before the program's first instruction, and its end.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use shunpike_core::{conn, host, life, process, session, user};

use crate::children;
use crate::host::{HOST, note_auxiliary};
use crate::vforked::foreign_process;

static BLOB: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static ZONES: AtomicPtr<[u32; 2]> = AtomicPtr::new(core::ptr::null_mut());

// SAFETY: the linker's: where the library's text begins and ends.
unsafe extern "C" {
    static __ehdr_start: u8;
    static _etext: u8;
}

/// Whether the address is in the library's text.
pub fn is_ours(address: usize) -> bool {
    ((&raw const __ehdr_start).addr()..(&raw const _etext).addr()).contains(&address)
}

/// The blob's text. Behind it are the stubs.
pub fn blob() -> Range<usize> {
    let [begin, end, _] = &BLOB;
    begin.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)
}

/// The blob's table of zones (zones.rs): from where on, and which one.
pub fn zones() -> *const [u32; 2] {
    ZONES.load(Ordering::Relaxed)
}

/// The blob's own handler.
pub fn blobs_handler() -> usize {
    BLOB[2].load(Ordering::Relaxed)
}

/// `stack`: as the kernel has made it for the program.
///
/// # Safety
/// The blob's arguments.
pub unsafe extern "C" fn start(
    stack: *const usize,
    begin: usize,
    end: usize,
    handler: usize,
    zones: *const [u32; 2],
) {
    for (to, word) in BLOB.iter().zip([begin, end, handler]) {
        to.store(word, Ordering::Relaxed);
    }
    ZONES.store(zones.cast_mut(), Ordering::Relaxed);
    // SAFETY: the kernel's: the number of arguments, they, a null pointer, the environment, a null pointer, the auxiliary vector.
    let environment = unsafe {
        let environment = stack.add(1 + *stack + 1);
        let mut behind = environment;
        while *behind != 0 {
            behind = behind.add(1);
        }
        note_auxiliary(behind.add(1).cast_mut().cast());
        core::slice::from_raw_parts(environment, behind.offset_from_unsigned(environment))
    };
    host::start(&HOST);
    let path = match variable(environment, b"SHUNPIKE_SOCKET") {
        None | Some(b"") => return,
        Some(path) => path,
    };
    session::configure(path, variable(environment, b"SHUNPIKE_PREFER").unwrap_or(b""));
    children::note(variable(environment, children::VARIABLE).unwrap_or(b""));
    user::start();
    life::start(life::Options {
        eager: variable(environment, b"SHUNPIKE_EAGER").is_some_and(|value| value == b"1"),
        profile: variable(environment, b"SHUNPIKE_PROFILE").and_then(process::profile_named),
    });
}

/// A variable of the environment.
fn variable(environment: &[usize], name: &[u8]) -> Option<&'static [u8]> {
    environment.iter().find_map(|at| {
        // SAFETY: the kernel's pointer to a string, which is there for as long as the program leaves it.
        let text = unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(*at)) }.to_bytes();
        text.strip_prefix(name)?.strip_prefix(b"=")
    })
}

/// What a process gives back when it ends by itself.
pub fn at_exit() {
    if process::enabled() && !foreign_process() {
        conn::at_exit();
    }
}
