//! Programs that no preloaded library reaches, where this one executes them: they are patched as `shunpike run` would, if the environment
//! that they are given says so.
//!
//! A process cannot trace itself, and what it executes must be its own. So a helper, which is nobody's child, traces it before the call and
//! patches the program behind it ([crates/inject/src/attach.rs]); the call itself stays the program's, with its result. The helper is the
//! `shunpike` command. It is begun by a child that shares our memory and has descriptors of its own, and that ends when the helper is ready,
//! or was given up: so nothing is inherited, nothing is left to be waited for, and no time is lost to the size of our memory. A child of
//! vfork() comes here, too: nothing is allocated, no lock is taken, errno stays.
//!
//! [crates/inject/src/attach.rs]: ../../inject/src/attach.rs

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use shunpike_arch::run_in_child;
use shunpike_core::sys;

/// What tells a program of it: the command, the library that is put in, and where sites are kept (which may be empty), between colons.
pub const VARIABLE: &[u8] = b"SHUNPIKE_INJECT";
/// Longest of its values.
const LONGEST: usize = 1024;
/// Most variables that are looked at.
const MOST: usize = 1 << 16;
/// A script's interpreter may be a script: the kernel follows this many.
const SCRIPTS: usize = 5;
/// How long a helper may take until it is there.
const PATIENCE_MS: usize = 100;
const AT_CWD: usize = libc::AT_FDCWD as usize;

/// Its parts, each ended by a NUL. Written at start-up, when there is one thread.
static PARTS: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static LEN: AtomicUsize = AtomicUsize::new(0);
/// The program lets nobody trace it but whom it has named itself, or has a filter of system calls.
static REFUSES: AtomicBool = AtomicBool::new(false);

/// Who is traced: as crates/inject names them.
#[derive(Copy, Clone)]
enum Who {
    Itself,
    Child,
}

/// Notes, at start-up, the variable's value.
pub fn note(value: &[u8]) {
    if !value.is_empty() && value.len() < LONGEST {
        let bytes = value.iter().map(|byte| if *byte == b':' { 0 } else { *byte });
        PARTS.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        LEN.store(value.len(), Ordering::Relaxed);
    }
}

/// From now on everything is executed as it is.
pub fn refuse() {
    REFUSES.store(true, Ordering::Relaxed);
}

fn may_reach() -> bool {
    LEN.load(Ordering::Relaxed) != 0 && !REFUSES.load(Ordering::Relaxed)
}

/// The parts' strings: command, library, cache.
fn parts() -> Option<[usize; 3]> {
    let (start, len) = (PARTS.as_ptr() as usize, LEN.load(Ordering::Relaxed));
    let mut found = [start, 0, 0];
    let mut ends = (0..len).filter(|at| PARTS.get(*at).is_some_and(|byte| byte.load(Ordering::Relaxed) == 0));
    for to in found.iter_mut().skip(1) {
        *to = start + ends.next()? + 1;
    }
    Some(found)
}

/// Before `path`, as execveat(2) has it, is executed in this process with the environment `environment`.
pub fn before_exec(directory: c_int, path: usize, flags: c_int, environment: usize) {
    // Of several threads the first is the process afterwards, whoever calls.
    if !may_reach() || sys::pid() != thread() {
        return;
    }
    if let Some(file) = at(directory, path, flags) {
        reach(&file, environment, Who::Itself);
    }
}

/// Before a name is executed that is searched for in the PATH of `own`, this program's environment.
pub fn before_exec_of(name: usize, own: usize, environment: usize) {
    if !may_reach() || sys::pid() != thread() {
        return;
    }
    if let Some(file) = search(name, own) {
        reach(&file, environment, Who::Itself);
    }
}

/// Before `path` is spawned by this thread.
pub fn before_spawn(path: usize, environment: usize) {
    if may_reach()
        && let Some(file) = at(libc::AT_FDCWD, path, 0)
    {
        reach(&file, environment, Who::Child);
    }
}

/// Before a name that is searched for is spawned by this thread.
pub fn before_spawn_of(name: usize, own: usize, environment: usize) {
    if may_reach()
        && let Some(file) = search(name, own)
    {
        reach(&file, environment, Who::Child);
    }
}

fn thread() -> u32 {
    // SAFETY: no pointers.
    unsafe { sys::call(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) }.unwrap_or(0) as u32
}

/// An open file, closed in the end.
struct Opened(usize);

impl Opened {
    /// `path`: where a string is, which need not be there.
    fn at(directory: usize, path: usize, flags: c_int) -> Option<Self> {
        // What is executed is an ordinary file; another one is not waited for.
        let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the kernel refuses a bad pointer.
        unsafe { sys::call(libc::SYS_openat, directory, path, flags as usize, 0, 0, 0) }.ok().map(Self)
    }

    fn read(&self, to: &mut [u8], offset: usize) -> usize {
        let read =
            // SAFETY: a buffer of that length.
            unsafe { sys::call(libc::SYS_pread64, self.0, to.as_mut_ptr() as usize, to.len(), offset, 0, 0) };
        read.unwrap_or(0)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys::call(libc::SYS_close, self.0, 0, 0, 0, 0, 0) };
    }
}

/// The file that execveat(2) would execute.
fn at(directory: c_int, path: usize, flags: c_int) -> Option<Opened> {
    let mut first = [0];
    if flags & libc::AT_EMPTY_PATH != 0 && copy(path, &mut first) && first == [0] {
        let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        decimal(directory as u32, name.get_mut(14..)?);
        return Opened::at(AT_CWD, name.as_ptr() as usize, 0);
    }
    let follow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
    Opened::at(directory as usize, path, follow)
}

/// The file that execvp(3) would execute: the first one that can be.
#[inline(never)]
fn search(name: usize, own: usize) -> Option<Opened> {
    let (mut text, mut path) = ([0; 256], [0; 2048]);
    let text = string(name, &mut text)?;
    if text.contains(&b'/') {
        return Opened::at(AT_CWD, name, 0);
    }
    // Without PATH, as execvp(3).
    let path = match variable(own, b"PATH") {
        Some(value) => string(value, &mut path)?,
        None => b"/bin:/usr/bin",
    };
    path.split(|byte| *byte == b':').find_map(|directory| {
        let mut file = [0; 512];
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let mut bytes = directory.iter().chain(separator).chain(text);
        // One at least is left, and is 0.
        file.iter_mut().take(511).zip(&mut bytes).for_each(|(to, byte)| *to = *byte);
        let (at, may) = (file.as_ptr() as usize, libc::X_OK as usize);
        let can = bytes.next().is_none()
            // SAFETY: a NUL-terminated name.
            && unsafe { sys::call(libc::SYS_faccessat, AT_CWD, at, may, 0, 0, 0) }.is_ok();
        // A directory can be opened, too, and not read.
        can.then(|| Opened::at(AT_CWD, at, 0)).flatten().filter(|file| file.read(&mut [0], 0) == 1)
    })
}

/// Where the value of a variable is.
fn variable(environment: usize, name: &[u8]) -> Option<usize> {
    for index in 0..MOST {
        let (mut at, mut start) = ([0; size_of::<usize>()], [0; 32]);
        if !copy(environment.wrapping_add(index * at.len()), &mut at) || at == [0; size_of::<usize>()] {
            return None;
        }
        let (at, start) = (usize::from_ne_bytes(at), start.get_mut(..=name.len())?);
        if copy(at, start) && start.strip_prefix(name) == Some(b"=") {
            return Some(at + name.len() + 1);
        }
    }
    None
}

/// A string of the program's, if it fits.
fn string(at: usize, to: &mut [u8]) -> Option<&[u8]> {
    const PAGE: usize = 4096;
    // What lies behind the string's end may be on a page that is not there.
    let first = to.len().min(PAGE - at % PAGE);
    let (before, behind) = to.split_at_mut(first);
    if !copy(at, before) || !before.contains(&0) && !copy(at + first, behind) {
        return None;
    }
    let len = to.iter().position(|byte| *byte == 0)?;
    to.get(..len)
}

/// Reads the program's memory; whether all of it could be read.
pub fn copy(at: usize, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(at), iov_len: to.len() };
    sys::read_process(sys::pid(), &[local], &[remote]) == Ok(to.len())
}

/// Writes a number, and leaves the rest.
fn decimal(number: u32, to: &mut [u8]) {
    let digits = number.checked_ilog10().unwrap_or(0) + 1;
    for (to, place) in to.iter_mut().zip((0..digits).rev()) {
        *to = b'0' + (number / 10_u32.pow(place) % 10) as u8;
    }
}

/// Whether a filter of system calls that was inherited (or no /proc) may be in the way: one that does
/// not know the calls below may end the process for them.
pub fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let (file, flags) = (c"/proc/self/status".as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize);
    // SAFETY: a NUL-terminated name; a buffer of that length; the descriptor that was just opened.
    let len = unsafe {
        let Ok(fd) = sys::call(libc::SYS_openat, libc::AT_FDCWD as usize, file, flags, 0, 0, 0) else {
            return true;
        };
        let read = sys::call(libc::SYS_read, fd, status.as_mut_ptr() as usize, status.len(), 0, 0, 0);
        let _ = sys::call(libc::SYS_close, fd, 0, 0, 0, 0, 0);
        read.unwrap_or(0)
    };
    let lines = status.get(..len).unwrap_or_default().split(|byte| *byte == b'\n');
    !lines.into_iter().any(|line| line == b"Seccomp:\t0")
}

/// Whether a child of this process is one of it in each way: not where it is to be in another namespace of process numbers, whose first
/// process it would be, or whose numbers mean others.
fn has_its_own_children() -> bool {
    let (mut own, mut of_children) = ([0; 64], [0; 64]);
    let read = |name: &core::ffi::CStr, to: &mut [u8; 64]| {
        // SAFETY: a NUL-terminated name; a buffer of that length.
        unsafe {
            sys::call(libc::SYS_readlink, name.as_ptr() as usize, to.as_mut_ptr() as usize, 64, 0, 0, 0)
        }
        .is_ok()
    };
    read(c"/proc/self/ns/pid", &mut own)
        && read(c"/proc/self/ns/pid_for_children", &mut of_children)
        && own == of_children
}

/// Whether orphans become this process's children: it would hear of a helper's end, and find it among what it waits for.
fn adopts() -> bool {
    let mut is_reaper: c_int = 0;
    let (get, to) = (libc::PR_GET_CHILD_SUBREAPER as usize, (&raw mut is_reaper).expose_provenance());
    // SAFETY: the kernel writes an int there.
    sys::pid() == 1 || unsafe { sys::call(libc::SYS_prctl, get, to, 0, 0, 0, 0) }.is_err() || is_reaper != 0
}

/// Has a helper patch what is in `file`, where no preloaded library reaches that, and this environment asks for it.
fn reach(file: &Opened, environment: usize, who: Who) {
    let mut name = [0; 256];
    let mut interpreter;
    let mut program = file;
    for _ in 0..SCRIPTS {
        match kind(program, &mut name) {
            Kind::Script => match Opened::at(AT_CWD, name.as_ptr() as usize, 0) {
                Some(opened) => interpreter = opened,
                None => return,
            },
            Kind::Reached => return,
            Kind::Unreached => {
                let mut first = [0];
                if is_filtered() || adopts() || !has_its_own_children() {
                    return;
                }
                if variable(environment, VARIABLE).is_some_and(|at| copy(at, &mut first) && first != [0]) {
                    begin(program.0, who);
                }
                return;
            }
        }
        program = &interpreter;
    }
}

enum Kind {
    /// Its interpreter's name has been written.
    Script,
    /// A libc's loader loads what is preloaded; or it is nothing that could be patched.
    Reached,
    Unreached,
}

/// What is in a file. The helper looks more closely.
#[inline(never)]
fn kind(file: &Opened, name: &mut [u8; 256]) -> Kind {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    let mut start = [0; 1024];
    let read = file.read(&mut start, 0);
    let start = start.get(..read).unwrap_or_default();
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty()).unwrap_or_default();
        if word.is_empty() || word.len() >= name.len() {
            return Kind::Reached;
        }
        name.fill(0);
        name.iter_mut().zip(word).for_each(|(to, byte)| *to = *byte);
        return Kind::Script;
    }
    let word = |at: usize| {
        start.get(at..at + 8).and_then(|bytes| bytes.first_chunk().copied()).map(usize::from_le_bytes)
    };
    let half = |at: usize| start.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    // A program of 64 bits, whose table lies where linkers put it.
    if !start.starts_with(b"\x7fELF\x02\x01") || word(32) != Some(HEADER) || half(54) != Some(SEGMENT as u16)
    {
        return Kind::Reached;
    }
    let segments =
        start.get(HEADER..).unwrap_or_default().chunks_exact(SEGMENT).take(half(56).unwrap_or(0).into());
    let (mut has_loader, mut dynamic) = (false, None);
    for (index, segment) in segments.enumerate() {
        match segment.first_chunk().copied().map(u32::from_le_bytes) {
            Some(libc::PT_INTERP) => has_loader = true,
            Some(libc::PT_DYNAMIC) => dynamic = word(HEADER + index * SEGMENT + 8),
            _ => {}
        }
    }
    match dynamic {
        // A Go PIE has a loader, and needs no library.
        Some(at) if has_loader && needs_a_library(file, at) => Kind::Reached,
        None if has_loader => Kind::Reached,
        _ => Kind::Unreached,
    }
}

/// Whether its dynamic section, at this offset, says so.
fn needs_a_library(file: &Opened, at: usize) -> bool {
    const NULL: u64 = 0;
    const NEEDED: u64 = 1;
    const ENTRY: usize = 16;
    let mut entries = [0; 64 * ENTRY];
    let read = file.read(&mut entries, at);
    let tags = entries.get(..read).unwrap_or_default().chunks_exact(ENTRY);
    let mut tags = tags.filter_map(|entry| entry.first_chunk().copied().map(u64::from_le_bytes));
    // One that is longer than any linker's is left alone.
    tags.find(|tag| matches!(*tag, NULL | NEEDED)) != Some(NULL)
}

#[repr(C, align(16))]
struct Stack([u8; 4096]);

/// What the child between us and the helper is to do.
struct Order {
    program: usize,
    arguments: [usize; 6],
    file: usize,
    told_by: [c_int; 2],
    stack: MaybeUninit<Stack>,
}

fn top(stack: &mut MaybeUninit<Stack>) -> *mut u8 {
    stack.as_mut_ptr().wrapping_add(1).cast()
}

/// Begins a helper for the program in this file, and waits until it traces this thread. Where it does not, nothing has happened.
#[inline(never)]
fn begin(file: usize, who: Who) {
    let Some([program, library, cache]) = parts() else { return };
    let mut number = [0; 12];
    decimal(thread(), &mut number);
    let who = match who {
        Who::Itself => c"itself",
        Who::Child => c"child",
    };
    let name = c"shunpike-patch".as_ptr() as usize;
    let arguments = [name, number.as_ptr() as usize, who.as_ptr() as usize, library, cache, 0];
    let mut order = Order { program, arguments, file, told_by: [-1; 2], stack: MaybeUninit::uninit() };
    let mut stack = MaybeUninit::uninit();
    let (all, mut before) = (u64::MAX, 0u64);
    let (all, before_at) = (&raw const all as usize, &raw mut before as usize);
    let set = libc::SIG_SETMASK as usize;
    // Handlers of signals that came to the child would run in our memory.
    // SAFETY: the masks live through the calls, and have the kernel's size.
    let _ = unsafe { sys::call(libc::SYS_rt_sigprocmask, set, all, before_at, 8, 0, 0) };
    // Where Yama is, only those may trace us that we name. Without it the call fails, and is not needed.
    let ptracer = |whom: usize| {
        // SAFETY: no pointers.
        let _ = unsafe { sys::call(libc::SYS_prctl, libc::PR_SET_PTRACER as usize, whom, 0, 0, 0, 0) };
    };
    // A helper is our descendant for as long as it takes to become a tracer.
    ptracer(sys::pid() as usize);
    let child =
        // Not CLONE_VFORK: a shell that stops the group would wait for ever, as who sleeps so is not seen to stop while its child is stopped.
        // SAFETY: a stack of its own. Its end raises no signal, and no wait of the program's sees it.
        unsafe { run_in_child(libc::CLONE_VM as usize, top(&mut stack), between, (&raw mut order).expose_provenance()) };
    if child > 0 {
        // SAFETY: no pointers.
        let _ = unsafe { sys::call(libc::SYS_wait4, child as usize, 0, libc::__WALL as usize, 0, 0, 0) };
    }
    ptracer(0);
    // SAFETY: as above.
    let _ = unsafe { sys::call(libc::SYS_rt_sigprocmask, set, before_at, 0, 8, 0, 0) };
}

/// In the child: begins the helper, and waits until it is ready.
extern "C" fn between(order: usize) -> c_int {
    // SAFETY: `begin`'s, which waits for this child's end.
    let order = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Order>(order) };
    let told_by = order.told_by.as_mut_ptr() as usize;
    let at = core::ptr::from_mut(order).expose_provenance();
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as usize;
    // SAFETY: pointers are to what lives as long as this child; descriptors and the helper are its own. The helper's stack is unused.
    unsafe {
        if sys::call(libc::SYS_pipe2, told_by, libc::O_CLOEXEC as usize, 0, 0, 0, 0).is_err() {
            return 1;
        }
        let helper = run_in_child(flags, top(&mut order.stack), become_helper, at);
        if helper < 0 {
            return 1;
        }
        let [told, tell] = order.told_by;
        let _ = sys::call(libc::SYS_close, tell as usize, 0, 0, 0, 0, 0);
        let mut ready = libc::pollfd { fd: told, events: libc::POLLIN, revents: 0 };
        let _ = sys::call(libc::SYS_poll, &raw mut ready as usize, 1, PATIENCE_MS, 0, 0, 0);
        if ready.revents & libc::POLLIN != 0 {
            return 0;
        }
        let _ = sys::call(libc::SYS_kill, helper as usize, libc::SIGKILL as usize, 0, 0, 0, 0);
        let _ = sys::call(libc::SYS_wait4, helper as usize, 0, libc::__WALL as usize, 0, 0, 0);
    }
    1
}

/// In the child's child: has the program's file as 3, and tells by 4; nothing else is open.
extern "C" fn become_helper(order: usize) -> c_int {
    const FILE: usize = 3;
    const TELL: usize = 4;
    const ABOVE: usize = 10;
    // SAFETY: as in `between`, which sleeps.
    let order = unsafe { &*core::ptr::with_exposed_provenance::<Order>(order) };
    let no_environment: [*const c_void; 1] = [core::ptr::null()];
    // SAFETY: descriptors are this process's own; strings and arrays end with zeros, and their memory stays until execve is done.
    let _ = unsafe {
        let moved = |fd: usize| sys::call(libc::SYS_fcntl, fd, libc::F_DUPFD as usize, ABOVE, 0, 0, 0);
        let (Ok(file), Ok(tell)) = (moved(order.file), moved(order.told_by[1] as usize)) else { return 1 };
        for (from, to) in [(file, FILE), (tell, TELL)] {
            if sys::call(libc::SYS_dup3, from, to, 0, 0, 0, 0).is_err() {
                return 1;
            }
        }
        let close = |from: usize, to: usize| sys::call(libc::SYS_close_range, from, to, 0, 0, 0, 0);
        if close(TELL + 1, u32::MAX as usize).is_err() || close(0, FILE - 1).is_err() {
            return 1;
        }
        let (arguments, environment) = (order.arguments.as_ptr() as usize, no_environment.as_ptr() as usize);
        sys::call(libc::SYS_execve, order.program, arguments, environment, 0, 0, 0)
    };
    1
}
