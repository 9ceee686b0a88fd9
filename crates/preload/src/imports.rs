//! What the library itself needs of others: libc's functions by the jumps that build.rs makes, the unwinder, and the loader's `dlsym`.
//!
//! The library names no other that it needs, and no version, so every loader takes it. A name that the process does not have is null.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use shunpike_arch::weak_function;

// The jumps call what is below by these names.
core::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/imports.s")),
    ".set shunpike_missing, {missing}",
    ".set shunpike_dlsym, {dlsym}",
    ".set shunpike_unwinder, {unwinder}",
    missing = sym missing,
    dlsym = sym default,
    unwinder = sym unwinder,
);

/// In place of a function that is not there.
pub extern "C" fn missing() -> isize {
    crate::errno::set_errno(libc::ENOSYS);
    -1
}

/// The function of the program's unwinder of this name, kept in `slot` once it is found. Called while something is unwound, or by a panic
/// of ours, which nobody catches.
///
/// # Safety
/// A NUL-terminated name, and its own slot.
unsafe extern "C" fn unwinder(name: *const c_char, slot: *const AtomicPtr<c_void>) -> *mut c_void {
    /// _URC_END_OF_STACK: there is nothing to unwind to.
    extern "C" fn nothing() -> c_int {
        5
    }
    /// No handler of exceptions in a frame, where somebody else's unwinder asks for one.
    extern "C" fn none() -> usize {
        0
    }
    // SAFETY: the caller's word for both.
    let (name, slot) = unsafe { (CStr::from_ptr(name), &*slot) };
    match find(name, false) {
        Some(at) => {
            slot.store(at, Ordering::Relaxed);
            at
        }
        None if name.to_bytes().starts_with(b"_Unwind_Get") => none as *mut c_void,
        None => nothing as *mut c_void,
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// dlsym(3): before glibc 2.34 it is in a library of its own, which few programs have. `None` there.
fn dlsym() -> Option<Dlsym> {
    weak_function!("__real_dlsym": Dlsym)
}

/// dlsym(3) of RTLD_DEFAULT, for the crates that ask whether libc has a function.
///
/// # Safety
/// A NUL-terminated name.
unsafe extern "C" fn default(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe {
        match dlsym() {
            Some(dlsym) => dlsym(handle, name),
            None => find(CStr::from_ptr(name), false).unwrap_or(core::ptr::null_mut()),
        }
    }
}

/// The next definition of `name` behind ours in the loader's order.
pub fn next(name: &CStr) -> Option<*mut c_void> {
    let Some(dlsym) = dlsym() else { return find(name, true) };
    // SAFETY: a NUL-terminated name; RTLD_NEXT searches the objects after this one.
    let at = unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// The definition of `name` in a library that is loaded already, of this name, which then stays.
///
/// # Safety
/// A NUL-terminated name of a library.
pub unsafe fn definition_in(library: *const c_char, name: &CStr) -> Option<*mut c_void> {
    let dlopen = weak_function!("dlopen": unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void)?;
    let dlsym = dlsym()?;
    // SAFETY: NUL-terminated names; nothing is loaded that is not there.
    let at = unsafe {
        let handle = dlopen(library, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if handle.is_null() { handle } else { dlsym(handle, name.as_ptr()) }
    };
    (!at.is_null()).then_some(at)
}

/// Where loaded objects define `name`: the first of all, or the first behind this library.
fn find(name: &CStr, behind_ours: bool) -> Option<*mut c_void> {
    struct Search<'a> {
        name: &'a CStr,
        looks: bool,
        found: Option<*mut c_void>,
    }
    // SAFETY: only the loader calls it, as dl_iterate_phdr(3) says.
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the one below, of which nobody else has a reference meanwhile.
        let search = unsafe { &mut *search.cast::<Search>() };
        // SAFETY: the loader's description of an object that is mapped, and stays so during the call.
        let object = unsafe { Object::of(&*info) };
        if !search.looks {
            // SAFETY: as above.
            search.looks = unsafe { contains(&*info, find as *const () as usize) };
        } else if let Some(object) = object {
            // SAFETY: as above.
            search.found = unsafe { object.definition(search.name) };
        }
        c_int::from(search.found.is_some())
    }
    let mut search = Search { name, looks: !behind_ours, found: None };
    // SAFETY: the callback has that signature and gets `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// Whether an object has code or data at `address`.
///
/// # Safety
/// The loader's description of a mapped object.
unsafe fn contains(info: &libc::dl_phdr_info, address: usize) -> bool {
    // SAFETY: the caller's word.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().any(|header| {
        let begin = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && (begin..begin + header.p_memsz as usize).contains(&address)
    })
}

/// An object's table of dynamic symbols, as System V's generic ABI and GNU's hash table have it.
struct Object {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    versions: *const u16,
    hash: *const u32,
    gnu_hash: *const u32,
}

impl Object {
    /// # Safety
    /// The loader's description of a mapped object.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        const HASH: u64 = 4;
        const STRINGS: u64 = 5;
        const SYMBOLS: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        const VERSIONS: u64 = 0x6fff_fff0;
        // SAFETY: the caller's word.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let base = info.dlpi_addr as usize;
        let mut entry = base.wrapping_add(dynamic.p_vaddr as usize) as *const [u64; 2];
        let mut object = Self {
            base,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            versions: core::ptr::null(),
            hash: core::ptr::null(),
            gnu_hash: core::ptr::null(),
        };
        // SAFETY: the list ends with a 0.
        while let [tag @ 1..=u64::MAX, value] = unsafe { *entry } {
            // glibc's loader has made addresses of offsets, but not where it may not write (the vDSO).
            let value = value as usize;
            let at = if value < base { base + value } else { value };
            match tag {
                HASH => object.hash = at as *const u32,
                STRINGS => object.strings = at as *const c_char,
                SYMBOLS => object.symbols = at as *const libc::Elf64_Sym,
                GNU_HASH => object.gnu_hash = at as *const u32,
                VERSIONS => object.versions = at as *const u16,
                _ => {}
            }
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        (!object.symbols.is_null() && !object.strings.is_null()).then_some(object)
    }

    /// # Safety
    /// The object is mapped.
    unsafe fn definition(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the caller's word; tables are as their formats say.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.by_gnu_hash(name)
            } else if !self.hash.is_null() {
                // The number of chains is the number of symbols.
                (1..*self.hash.add(1)).find_map(|index| self.defines(index, name))
            } else {
                None
            }
        }
    }

    /// # Safety
    /// As `definition`.
    unsafe fn by_gnu_hash(&self, name: &CStr) -> Option<*mut c_void> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the caller's word: number of buckets, first symbol, words of 64 bits in the filter, its shift; filter, buckets, chains.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| *self.gnu_hash.add(at));
            if buckets == 0 {
                return None;
            }
            let bucket = self.gnu_hash.add(4 + 2 * filter as usize);
            let chains = bucket.add(buckets as usize);
            let mut index = *bucket.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let link = *chains.add((index - first) as usize);
                if link | 1 == hash | 1
                    && let Some(at) = self.defines(index, name)
                {
                    return Some(at);
                }
                if link & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// Where, if symbol `index` is a definition of `name` in the version that is for everybody.
    ///
    /// # Safety
    /// As `definition`; there is such a symbol.
    unsafe fn defines(&self, index: u32, name: &CStr) -> Option<*mut c_void> {
        const HIDDEN: u16 = 0x8000;
        const FUNCTION: u8 = 2;
        const INDIRECT: u8 = 10;
        // SAFETY: the caller's word.
        unsafe {
            let symbol = &*self.symbols.add(index as usize);
            let kind = symbol.st_info & 0xf;
            if symbol.st_shndx == 0
                || symbol.st_info >> 4 == 0
                || !(kind == FUNCTION || kind == INDIRECT)
                || CStr::from_ptr(self.strings.add(symbol.st_name as usize)) != name
                || !self.versions.is_null() && *self.versions.add(index as usize) & HIDDEN != 0
            {
                return None;
            }
            let at = self.base.wrapping_add(symbol.st_value as usize) as *mut c_void;
            if kind == INDIRECT {
                let choose: extern "C" fn() -> *mut c_void = core::mem::transmute(at);
                return Some(choose());
            }
            Some(at)
        }
    }
}
