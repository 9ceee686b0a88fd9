//! Links without any other library, so that relative relocations alone are left, which the injector knows.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The blob keeps xmm0-15 across an entry, and nothing wider.
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    assert!(
        !features.split(',').any(|feature| feature == "avx"),
        "built for x86-64 as such: take target-cpu and target-feature away"
    );
    // The crate of libc's types names these libraries itself: the linker finds empty ones first.
    let none = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names it"));
    for library in ["c", "gcc_s", "m", "rt", "pthread", "util", "dl"] {
        fs::write(none.join(format!("lib{library}.so")), "/* nothing */\n").expect("written");
    }
    println!("cargo::rustc-link-arg-cdylib=-L{}", none.display());
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-Bsymbolic,-e,SHUNPIKE_ENTRY",
        "-Wl,-z,defs,-z,now,-z,nodynamic-undefined-weak,-z,nopack-relative-relocs",
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
}
