//! A process that becomes another user.

use shunpike_core::{process, session};

use crate::real::Arguments;
use crate::vforked::foreign_process;

fn becomes(uid: usize) {
    // As the kernel: 32 bits of the register, all of them set for "as it is".
    let uid = uid as u32;
    if process::enabled() && uid != u32::MAX && !foreign_process() {
        session::before_becoming(uid);
    }
}

fn before_first_is_effective([uid, ..]: Arguments) {
    becomes(uid);
}

fn before_second_is_effective([_, uid, ..]: Arguments) {
    becomes(uid);
}

stubs! { before_first_is_effective:
    setuid, seteuid,
}

stubs! { before_second_is_effective:
    setreuid, setresuid,
}
