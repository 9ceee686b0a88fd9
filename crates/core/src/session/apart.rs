//! A stack of the session's own. Programs have threads with a stack of PTHREAD_STACK_MIN, and handlers on one of SIGSTKSZ bytes: too little
//! for what the broker's messages bring about, which any call of theirs may have to attend to.

use core::cell::UnsafeCell;

use shunpike_arch::run_on_stack;

use super::Session;
use crate::sys;

/// Some times what is needed. Pages that nobody gets to cost no memory.
const LEN: usize = 128 * 1024;

#[repr(C, align(4096))]
struct Stack(UnsafeCell<[u8; LEN]>);

// SAFETY: used by the holder of the session's lock alone.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; LEN]));

/// Signals of the thread itself, which are not kept back.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

struct Call<'a, F, R> {
    what: Option<F>,
    session: &'a mut Session,
    result: Option<R>,
}

/// Runs `what` there; in place, where that is where we are. No signal is handled meanwhile: the kernel would take the thread to be off its
/// alternate stack, and begin that anew.
pub(super) fn run<R>(session: &mut Session, what: impl FnOnce(&mut Session) -> R) -> R {
    let mark = 0u8;
    let base = STACK.0.get().cast::<u8>();
    if (base.addr()..base.addr() + LEN).contains(&(&raw const mark).addr()) {
        return what(session);
    }
    let faults = FAULTS.iter().fold(0, |set, signal| set | 1u64 << (signal - 1));
    let before = sys::mask_signals(libc::SIG_BLOCK, !faults);
    let mut call = Call { what: Some(what), session, result: None };
    let result = run_at(base, &mut call);
    sys::mask_signals(libc::SIG_SETMASK, before);
    result
}

fn run_at<F: FnOnce(&mut Session) -> R, R>(base: *mut u8, call: &mut Call<'_, F, R>) -> R {
    // SAFETY: the session is borrowed exclusively, so that the stack is ours; `enter` is given what it is made for.
    unsafe { run_on_stack(base.add(LEN), enter::<F, R>, core::ptr::from_mut(call).cast()) };
    match call.result.take() {
        Some(result) => result,
        None => unreachable!("it was run"),
    }
}

unsafe extern "C" fn enter<F: FnOnce(&mut Session) -> R, R>(call: *mut u8) {
    // SAFETY: `run_at` lends it for so long.
    let call = unsafe { &mut *call.cast::<Call<'_, F, R>>() };
    call.result = call.what.take().map(|what| what(call.session));
}
