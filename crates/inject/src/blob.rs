//! What a patched call enters, as position-independent code that is copied into the program.
//!
//! A stub comes in with the address of its description ([`description`]) in rcx, which the call would spoil anyway, and with all else as
//! the program has it. Nothing is written to the program's stack, not even below its red zone: a Go leaf may stand on its last byte.
//! Frames lie in the thread's block, whose state the GS base points to. The handler behind is a plain C function; what it answers is an
//! [`Answer`]. Calls that the program is to make are made with the program's own stack and registers, by its own instruction where that
//! was left in place: so a restart, a cancellation by program counter, clone and vfork find what they always find.
//!
//! GS base is inherited by a new thread. The parent puts a block into `pending` beforehand, the child takes one: any will do, and there
//! are as many as there are children. Until it has one it uses neither memory nor stack. A vfork child shares its parent's block: the
//! parent sleeps.

use std::arch::global_asm;

/// A thread's block: a guard page, the stack that handlers run on, frames, the state.
pub const BLOCK: usize = 128 << 10;
/// The lowest page of a block is no memory.
pub const GUARD: usize = 4096;
/// The state's size, at the block's end: words of ours, and what a library keeps of the thread.
const STATE: usize = 320;
/// Where the state lies in its block.
pub const STATE_AT: usize = BLOCK - STATE;
/// What one entry saves.
const FRAME: usize = 400;
/// How many entries may be nested: a signal handler may interrupt an entry, and make calls.
const DEPTH: usize = 16;
/// How many blocks wait for a child, or for a new thread.
const SLOTS: usize = 64;
/// Calls that are told apart by their numbers; all above are as the last one.
pub const COUNTED: usize = 512;
/// The calls that the blob's own handler looks at: clone, fork, vfork, exit, sigaltstack, prctl, arch_prctl, seccomp, clone3.
const LOOKED_AT: [usize; 9] = [56, 57, 58, 60, 131, 157, 158, 317, 435];

/// What the handler answers.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Answer {
    /// The program makes its call.
    Make = 0,
    /// It is done, and its result is in the frame.
    Done = 1,
    /// The program makes it, and has another thread then.
    Thread = 2,
    /// The program makes it, and its child borrows this thread's memory.
    Vfork = 3,
    /// The thread ends.
    Exit = 4,
}

/// Where things are that a stub needs, from the beginning of the blob's code.
pub mod offset {
    /// What a stub jumps to.
    pub const ENTRY: usize = 64;
    /// Behind a clone that makes a thread.
    pub const AFTER_THREAD: usize = 0;
    /// Behind a vfork.
    pub const AFTER_VFORK: usize = 8;
}

/// What a stub tells the entry: words, and code behind them for the calls that come back twice.
pub mod description {
    /// Where the call is made and what is behind it, which may be in the stub; then of the program itself: where the jump stands, where its
    /// call was, and the first instruction that is not displaced; then how long what is displaced behind the call is in the stub.
    pub const SIZE: usize = 48;
    /// A system call that goes on in `AFTER_THREAD`; and behind that one which goes on in `AFTER_VFORK`.
    pub const CALL: usize = 14;
}

/// The blob's data, which begin with the words of [`Words`]; then its code.
pub struct Blob {
    /// Whole pages.
    pub data: &'static [u8],
    /// Whole pages.
    pub text: &'static [u8],
    /// The handler, from the beginning of the text.
    pub handler: usize,
    /// What runs before the program's first instruction.
    pub begin: usize,
    /// Which calls are shown to the handler, from the beginning of the data.
    pub shown: usize,
}

/// What the blob must be told.
pub struct Words {
    /// The handler's address.
    pub handler: u64,
    /// The counters' address, or 0.
    pub counts: u64,
    /// The helper.
    pub helper: u32,
    /// Where the program begins.
    pub first: u64,
    /// A library's function that runs before that, or 0.
    pub start: u64,
    /// A library's function that delivers the signals which it has kept back while it ran, or 0.
    pub deliver: u64,
}

impl Words {
    /// As the data begin.
    pub fn bytes(&self) -> [u8; 48] {
        words([self.handler, self.counts, self.helper.into(), self.first, self.start, self.deliver])
    }
}

/// Which calls are shown to the handler, a byte for each number: those that `library` marks, and the blob's own.
pub fn shown(library: Option<&[u8; COUNTED]>) -> [u8; COUNTED] {
    let mut shown = library.copied().unwrap_or([0; COUNTED]);
    for number in LOOKED_AT {
        shown[number] = 1;
    }
    shown
}

fn words<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// A new thread's state, for a block at `address`.
pub fn state(address: u64) -> [u8; 64] {
    let own = address + STATE_AT as u64;
    let frame = |number: usize| own - (number * FRAME) as u64;
    words([own, own, frame(1), frame(DEPTH), frame(DEPTH + 1), 0, 0, 0])
}

// SAFETY: labels of the section below.
unsafe extern "C" {
    static shunpike_inject_data: u8;
    static shunpike_inject_text: u8;
    static shunpike_inject_handler: u8;
    static shunpike_inject_begin: u8;
    static shunpike_inject_shown: u8;
    static shunpike_inject_end: u8;
}

/// The blob.
pub fn blob() -> Blob {
    let [data, text, handler, begin, shown, end] = [
        &raw const shunpike_inject_data,
        &raw const shunpike_inject_text,
        &raw const shunpike_inject_handler,
        &raw const shunpike_inject_begin,
        &raw const shunpike_inject_shown,
        &raw const shunpike_inject_end,
    ];
    let between = |from: *const u8, to: *const u8| {
        // SAFETY: data, text and end stand in this order in one section below, which nobody writes to.
        unsafe { std::slice::from_raw_parts(from, to.addr() - from.addr()) }
    };
    Blob {
        data: between(data, text),
        text: between(text, end),
        handler: handler.addr() - text.addr(),
        begin: begin.addr() - text.addr(),
        shown: shown.addr() - data.addr(),
    }
}

global_asm!(
    include_str!("blob.s"),
    slots = const SLOTS,
    frame = const FRAME,
    depth = const DEPTH,
    block = const BLOCK,
    guard = const GUARD,
    state = const STATE,
    state_at = const STATE_AT,
    counted = const COUNTED,
    make = const Answer::Make as u32,
    done = const Answer::Done as u32,
    thread = const Answer::Thread as u32,
    vfork = const Answer::Vfork as u32,
    exit = const Answer::Exit as u32,
    description = const description::SIZE,
    call = const description::CALL,
);
