//! What is on where the library is in every program (/etc/ld.so.preload): by a list of the operator's. Whatever is wrong with the list,
//! the program starts, and stays on TCP.

use core::ffi::{CStr, c_char};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::net::SocketAddrAny;
use shunpike_wire::enabled::{AtPorts, LONGEST, MOST_PORTS, PATH, Ports, Program, is_connection_on, is_on};

use crate::host::host;
use crate::sys::borrowed;

static LINES: [AtomicU64; MOST_PORTS] = [const { AtomicU64::new(0) }; MOST_PORTS];
/// How many of them there are. Written at start-up, when there is one thread.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether this program is on; from here on, what the list says of ports holds for it. At start-up. One look-up where there is no list.
pub fn by_list() -> bool {
    let at_ports = looked_up();
    at_ports.as_ref().map(keep_to).is_some()
}

fn looked_up() -> Option<AtPorts> {
    // Whoever runs it chose neither its rights nor its environment: it is left alone. So is the first process of all: were anything
    // wrong in it, the machine would not start.
    if (host().auxiliary)(libc::AT_SECURE) != 0 || rustix::process::getpid().is_init() {
        return None;
    }
    let mut text = [0; LONGEST];
    let text = read(&mut text)?;
    let mut file = [0; libc::PATH_MAX as usize];
    let len = rustix::fs::readlinkat_raw(CWD, c"/proc/self/exe", &mut file).unwrap_or(0);
    let file = file.get(..len).unwrap_or_default();
    let called = core::ptr::with_exposed_provenance::<c_char>((host().auxiliary)(libc::AT_EXECFN) as usize);
    // SAFETY: where it is not null, the kernel's own NUL-terminated string, there as long as the process.
    let called = if called.is_null() { &[][..] } else { unsafe { CStr::from_ptr(called) }.to_bytes() };
    let program = Program { paths: [file, called], user: rustix::process::geteuid().as_raw() };
    is_on(text, &program).ok().flatten()
}

/// The list's text. `None`: there is none, or not one that can be read without waiting.
fn read(text: &mut [u8; LONGEST]) -> Option<&[u8]> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, PATH, flags, Mode::empty()).ok()?;
    let there = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut len = 0;
    while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(&file, rest).ok()? {
            0 => return text.get(..len),
            got => len += got,
        }
    }
    // Longer than any list is.
    None
}

fn keep_to(list: &AtPorts) {
    let mut count = 0;
    for ((on, ports), to) in list.lines().zip(&LINES) {
        to.store(
            u64::from(on) << 32 | u64::from(ports.first) << 16 | u64::from(ports.last),
            Ordering::Relaxed,
        );
        count += 1;
    }
    COUNT.store(count, Ordering::Relaxed);
}

/// Whether the list has the connection off by one of its ports.
pub fn bars(fd: i32) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    if count == 0 {
        return false;
    }
    let lines = LINES.iter().take(count).map(|line| {
        let line = line.load(Ordering::Relaxed);
        (line >> 32 != 0, Ports { first: (line >> 16) as u16, last: line as u16 })
    });
    let socket = borrowed(fd);
    let port = |name: Option<SocketAddrAny>| {
        name.and_then(|name| SocketAddr::try_from(name).ok()).map_or(0, |at| at.port())
    };
    let ends =
        [port(rustix::net::getsockname(socket).ok()), port(rustix::net::getpeername(socket).ok().flatten())];
    !is_connection_on(lines, ends)
}
