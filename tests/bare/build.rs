//! Links without libc and without its start files: each name that is missing is an error.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-nostdlib", "-nostartfiles", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    // The crate of libc's types names these libraries itself: the linker finds empty ones first.
    let none = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names it"));
    for library in ["c", "m", "rt", "pthread", "util", "dl"] {
        fs::write(none.join(format!("lib{library}.a")), "!<arch>\n").expect("written");
    }
    println!("cargo::rustc-link-arg-bins=-L{}", none.display());
}
