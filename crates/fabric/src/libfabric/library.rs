//! The library: found when an engine is made, never linked.

use super::abi::{Fabric, FabricAttr, Info};
use crate::engine::EngineError;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::mem::transmute_copy;
use std::sync::OnceLock;

/// Debian's and upstream's name since 2015.
const NAME: &CStr = c"libfabric.so.1";

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;

/// What libfabric exports and we call.
#[derive(Copy, Clone)]
pub struct Library {
    pub getinfo: GetInfo,
    pub freeinfo: unsafe extern "C" fn(*mut Info),
    pub dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int,
}

impl Library {
    /// Loads it, the first time: all its providers begin then (0.3 s). Errors: `Missing`.
    pub fn load() -> Result<Self, EngineError> {
        static LIBRARY: OnceLock<Result<Library, EngineError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).clone()
    }

    fn open() -> Result<Self, EngineError> {
        // SAFETY: a C string. The library's own constructors run; it stays for the life of the process.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(EngineError::Missing(said()));
        }
        // The symbols' versions say which layout of the structures they take. These are the ones of `abi`; later libraries keep them.
        // SAFETY: each has the type that the header of its version gives it.
        unsafe {
            Ok(Self {
                getinfo: symbol(handle, c"fi_getinfo", c"FABRIC_1.3")?,
                freeinfo: symbol(handle, c"fi_freeinfo", c"FABRIC_1.3")?,
                dupinfo: symbol(handle, c"fi_dupinfo", c"FABRIC_1.3")?,
                fabric: symbol(handle, c"fi_fabric", c"FABRIC_1.1")?,
            })
        }
    }
}

/// A function of the library.
///
/// # Safety
/// `F` is the type of a pointer to it.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<F, EngineError> {
    // SAFETY: a handle of dlopen, and C strings.
    let at = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    if at.is_null() {
        return Err(EngineError::Missing(said()));
    }
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller's word for the type, whose size was just compared.
    Ok(unsafe { transmute_copy(&at) })
}

/// What the loader says of the last failure.
fn said() -> String {
    // SAFETY: dlerror gives nothing or a C string that stays until this thread's next call of the loader.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "the loader does not say why".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}
