//! The program's memory: what it maps may be lent to receivers (MSG_ZEROCOPY), and is taken back before it goes.
//!
//! Allocators call these before they are ready themselves, so nothing is looked up by the loader: each hook makes its system call.

use core::ffi::{c_int, c_uint, c_void};

use libc::{off_t, size_t};
use shunpike_core::Errno;
use shunpike_core::conn;
use shunpike_core::sys::call;
use shunpike_core::user;
use shunpike_core::zerocopy::{lending, mappings};

use crate::errno::set_errno;

/// MADV_GUARD_INSTALL of include/uapi/asm-generic/mman-common.h, Linux 6.13.
const GUARD_INSTALL: c_int = 102;

/// Before what is at `at` goes, or becomes something else.
fn leaves(at: *mut c_void, len: size_t) {
    lending::recall_from(at.addr(), len);
    mappings::unmapped(at.addr(), len);
}

/// Whether pages lose their bytes by madvise(2).
fn discards(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_DONTNEED_LOCKED
            | GUARD_INSTALL
    )
}

/// Most stretches that one process_madvise(2) may name (UIO_MAXIOV).
const MOST_STRETCHES: usize = 1024;

/// Before process_madvise(2) takes bytes away from these stretches. Those of another process are no memory of ours: what is lent there is
/// copied without a need.
///
/// # Safety
/// As many of them as can be read are what the program gives to the call.
unsafe fn before_process_madvise(stretches: *const libc::iovec, count: usize, advice: c_int) {
    if !discards(advice) {
        return;
    }
    for number in 0..count.min(MOST_STRETCHES) {
        // SAFETY: the caller's word; a bad pointer is found out.
        let Some(one) = (unsafe { user::fetch(stretches.wrapping_add(number)) }) else { return };
        lending::recall_from(one.iov_base.addr(), one.iov_len);
    }
}

/// The calls below, by their numbers.
pub const CALLS: [i64; 8] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_remap_file_pages,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
];

/// Before syscall(2) makes one of [`CALLS`].
///
/// # Safety
/// The program's arguments.
pub unsafe fn before_call(number: i64, [first, second, third, fourth]: [usize; 4]) {
    let (at, len) = (core::ptr::without_provenance_mut(first), second);
    match number {
        libc::SYS_munmap | libc::SYS_mremap | libc::SYS_remap_file_pages => leaves(at, len),
        libc::SYS_mmap if fourth as c_int & libc::MAP_FIXED != 0 => leaves(at, len),
        libc::SYS_madvise if discards(third as c_int) => lending::recall_from(at.addr(), len),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect if third as c_int & libc::PROT_READ == 0 => {
            lending::recall_from(at.addr(), len);
        }
        libc::SYS_process_madvise => {
            let stretches = core::ptr::with_exposed_provenance(second);
            // SAFETY: the caller's word.
            unsafe { before_process_madvise(stretches, third, fourth as c_int) };
        }
        _ => {}
    }
}

/// A system call's result as libc gives it.
fn said(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    }
}

unsafe fn map(
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        leaves(at, len);
    }
    let (kind, fd) = (flags as usize, fd as usize);
    // SAFETY: the program's call, unchanged.
    let made = unsafe { call(libc::SYS_mmap, at.addr(), len, access as usize, kind, fd, offset as usize) };
    let made = said(made);
    if made != -1
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & (libc::MAP_GROWSDOWN | libc::MAP_HUGETLB) == 0
    {
        mappings::mapped(made as usize, len);
    }
    if made != -1 && flags & libc::MAP_ANONYMOUS == 0 {
        conn::ring_mapped(fd as c_int, offset as usize, made as usize);
    }
    core::ptr::with_exposed_provenance_mut(made as usize)
}

/// At start-up: the program's own zeroed data are there for as long as it is. What stands before them is of a file.
pub fn start() {
    // SAFETY: the auxiliary vector's program headers are the executable's, mapped for as long as it runs.
    let headers = unsafe {
        let at =
            core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(libc::getauxval(libc::AT_PHDR) as usize);
        let count = libc::getauxval(libc::AT_PHNUM) as usize;
        if at.is_null() || count == 0 {
            return;
        }
        core::slice::from_raw_parts(at, count)
    };
    let Some(own) = headers.iter().find(|one| one.p_type == libc::PT_PHDR) else { return };
    let base = (headers.as_ptr().addr() as u64).wrapping_sub(own.p_vaddr);
    for one in headers.iter().filter(|one| one.p_type == libc::PT_LOAD && one.p_flags & libc::PF_W != 0) {
        let begin = base.wrapping_add(one.p_vaddr + one.p_filesz).next_multiple_of(PAGE);
        let end = base.wrapping_add(one.p_vaddr + one.p_memsz) / PAGE * PAGE;
        mappings::mapped(begin as usize, end.saturating_sub(begin) as usize);
    }
}

const PAGE: u64 = 4096;

hooks! {
    /// mmap(2)
    fn mmap(at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map(at, len, access, flags, fd, offset)
    }
    /// mmap(2), 64-bit offsets
    fn mmap64(at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map(at, len, access, flags, fd, offset)
    }
    /// munmap(2)
    fn munmap(at: *mut c_void, len: size_t) -> c_int {
        leaves(at, len);
        said(call(libc::SYS_munmap, at.addr(), len, 0, 0, 0, 0)) as c_int
    }
    /// mremap(2): `to` is there with MREMAP_FIXED and MREMAP_DONTUNMAP, else whatever the register holds
    fn mremap(at: *mut c_void, len: size_t, new: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
        let was_known = mappings::holds(at.addr(), len);
        leaves(at, len);
        if flags & libc::MREMAP_FIXED != 0 {
            leaves(to, new);
        }
        let made = said(call(libc::SYS_mremap, at.addr(), len, new, flags as usize, to.addr(), 0));
        if was_known {
            if made == -1 { mappings::mapped(at.addr(), len) } else { mappings::mapped(made as usize, new) }
        }
        core::ptr::with_exposed_provenance_mut(made as usize)
    }
    /// madvise(2)
    fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
        if discards(advice) {
            lending::recall_from(at.addr(), len);
        }
        said(call(libc::SYS_madvise, at.addr(), len, advice as usize, 0, 0, 0)) as c_int
    }
    /// mprotect(2)
    fn mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int {
        if access & libc::PROT_READ == 0 {
            lending::recall_from(at.addr(), len);
        }
        said(call(libc::SYS_mprotect, at.addr(), len, access as usize, 0, 0, 0)) as c_int
    }
    /// pkey_mprotect(2): without a key it is mprotect(2), also where the kernel has no keys
    fn pkey_mprotect(at: *mut c_void, len: size_t, access: c_int, key: c_int) -> c_int {
        if access & libc::PROT_READ == 0 {
            lending::recall_from(at.addr(), len);
        }
        let number = if key == -1 { libc::SYS_mprotect } else { libc::SYS_pkey_mprotect };
        said(call(number, at.addr(), len, access as usize, key as usize, 0, 0)) as c_int
    }
    /// process_madvise(2)
    fn process_madvise(
        process: c_int, stretches: *const libc::iovec, count: size_t, advice: c_int, flags: c_uint,
    ) -> isize {
        before_process_madvise(stretches, count, advice);
        let (given, flags) = (stretches.addr(), flags as usize);
        said(call(libc::SYS_process_madvise, process as usize, given, count, advice as usize, flags, 0))
    }
    /// remap_file_pages(2)
    fn remap_file_pages(at: *mut c_void, len: size_t, access: c_int, page: size_t, flags: c_int) -> c_int {
        leaves(at, len);
        let (access, flags) = (access as usize, flags as usize);
        said(call(libc::SYS_remap_file_pages, at.addr(), len, access, page, flags, 0)) as c_int
    }
}
