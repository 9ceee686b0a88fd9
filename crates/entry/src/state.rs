//! What the injector keeps of a thread and of an entry (crates/inject/src/blob.s), as words by the GS base.

use core::arch::asm;
use core::mem::offset_of;

/// A thread's words.
#[repr(C)]
pub struct State {
    own: usize,
    /// The frame of the newest entry; without one, `own`.
    top: usize,
    first: usize,
    last: usize,
    stack: usize,
    alternate: usize,
    alternate_size: usize,
    vforks: usize,
    surplus: usize,
    errno: usize,
    kept_back: usize,
    presents: usize,
}

/// One entry.
#[repr(C)]
pub struct Frame {
    /// The call's number, which becomes its result.
    pub number: usize,
    /// Its arguments, as the kernel has them.
    pub arguments: [usize; 6],
    /// Which call it is.
    pub description: *const Description,
    /// The program's stack; 0 or -1 in a frame that is free.
    pub stack: usize,
    flags: usize,
    vectors: [u128; 16],
    /// The word `top` without it.
    pub up: usize,
    /// rbx, rbp, r12, r13, r14, r15.
    pub kept: [usize; 6],
    apart: usize,
}

/// What a stub says of its call (crates/inject/src/blob.rs): addresses.
#[repr(C, packed)]
pub struct Description {
    /// Where it is made, and what follows that, which may be in the stub.
    _made: [usize; 2],
    /// Where the jump to the stub stands.
    pub start: usize,
    /// Where the program's call is.
    pub own: usize,
    /// What follows the program's instructions that were displaced.
    pub end: usize,
    /// How long those behind the call are in the stub.
    pub length: usize,
}

impl Description {
    /// What follows the program's call.
    pub fn behind(&self) -> usize {
        self.own + 2
    }
}

impl Frame {
    /// Whether all of it has been saved: the stack comes last.
    pub fn is_whole(&self) -> bool {
        self.stack != 0 && self.stack != usize::MAX
    }

    /// The program's flags, and all others as they are in `now`.
    pub fn flags_among(&self, now: usize) -> usize {
        /// As `lahf` has them, and OF.
        const SAVED: [usize; 2] = [0xd5, 1 << 11];
        now & !(SAVED[0] | SAVED[1]) | self.flags >> 8 & SAVED[0] | (self.flags & 1) << 11
    }
}

/// A frame's size.
pub const FRAME: usize = 400;
const _: () =
    assert!(size_of::<Frame>() == FRAME && offset_of!(Frame, up) == 336 && offset_of!(Frame, apart) == 392);
const _: () = assert!(
    offset_of!(State, errno) == 72 && offset_of!(State, kept_back) == 80 && size_of::<State>() <= 128
);
/// A thread's memory: the stack that handlers run on, and the words at its end.
const BLOCK: usize = 128 << 10;
const STATE_AT: usize = BLOCK - 320;

/// A word of the calling thread's.
macro_rules! words {
    ($($read:ident $write:ident $field:ident;)*) => {$(
        /// Reads it.
        #[inline(always)]
        #[allow(dead_code, reason = "some are only written")]
        pub fn $read() -> usize {
            let value: usize;
            // SAFETY: a word of this thread's, which nobody else writes.
            unsafe { asm!("mov {0}, qword ptr gs:[{1}]", out(reg) value, const offset_of!(State, $field), options(nostack, preserves_flags)) };
            value
        }
        /// Writes it.
        #[inline(always)]
        #[allow(dead_code, reason = "some are only read")]
        pub fn $write(value: usize) {
            // SAFETY: as above.
            unsafe { asm!("mov qword ptr gs:[{1}], {0}", in(reg) value, const offset_of!(State, $field), options(nostack, preserves_flags)) };
        }
    )*};
}

words! {
    own _set_own own;
    top set_top top;
    last _set_last last;
    alternate _set_alternate alternate;
    alternate_size _set_alternate_size alternate_size;
    errno set_errno errno;
    kept_back set_kept_back kept_back;
    presents_next set_presents_next presents;
    vforks _set_vforks vforks;
}

/// The frame of the entry that the calling thread is in; `None` before the program begins.
pub fn frame() -> Option<*mut Frame> {
    let top = top();
    (top != own()).then(|| core::ptr::with_exposed_provenance_mut(top))
}

/// Whether the address is on the stack that handlers run on.
pub fn is_on_own_stack(address: usize) -> bool {
    let begin = own() - STATE_AT;
    (begin..begin + BLOCK).contains(&address)
}

/// Whether it is within this thread's memory.
pub fn is_in_block(address: usize) -> bool {
    is_on_own_stack(address)
}

/// Forgets frames that a handler of the program has jumped away from: the stack of the newest entry has come back to where theirs was.
///
/// # Safety
/// `frame` is the calling thread's newest.
pub unsafe fn forget_abandoned(frame: *mut Frame) {
    /// Stacks are smaller.
    const STACK: usize = 64 << 20;
    // SAFETY: the caller's word; frames up to the thread's words are there.
    unsafe {
        let stack = (*frame).stack;
        if is_on_own_stack(stack) {
            return;
        }
        let is_alternate = |stack: usize| stack.wrapping_sub(alternate()) < alternate_size();
        while (*frame).up < own() {
            let up: *mut Frame = core::ptr::with_exposed_provenance_mut((*frame).up);
            let below = (*up).stack;
            if below == 0 || below == usize::MAX || is_on_own_stack(below) {
                return;
            }
            let gone = match (is_alternate(below), is_alternate(stack)) {
                (true, false) => true,
                (false, true) => false,
                _ => stack.wrapping_sub(below) < STACK,
            };
            if !gone {
                return;
            }
            (*up).stack = usize::MAX;
            (*frame).up = (*up).up;
        }
    }
}
