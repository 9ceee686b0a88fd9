//! Makes of `imports.txt` the library's references to libc, and has it linked without libc.
//!
//! A strong reference, a version, or a library that is needed each make some loader refuse to start the program. So the linker turns
//! each reference to a name of the list into one to a jump of ours (`--wrap`), and the jump alone names libc's function, weakly.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=imports.txt");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names it"));
    // A sanitizer's runtime is in the program, and the library that it watches is loaded into no other: it is linked as any library.
    if env::var_os("CARGO_CFG_SANITIZE").is_some() {
        let code = ".pushsection .text\n.hidden __real_dlsym\n__real_dlsym: jmp qword ptr [rip + dlsym@GOTPCREL]\n.popsection\n";
        fs::write(out.join("imports.s"), code).expect("written");
        return;
    }
    let list = fs::read_to_string("imports.txt").expect("the list");
    let mut code = String::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (name, missing) = line.split_once(' ').expect("a name, and what stands for it");
        jump(&mut code, name, missing);
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap={name}");
    }
    fs::write(out.join("imports.s"), code).expect("written");
    // rustc names these libraries itself: the linker finds empty ones first.
    let none = out.join("none");
    fs::create_dir_all(&none).expect("made");
    for library in ["c", "gcc_s", "util", "rt", "pthread", "m", "dl"] {
        fs::write(none.join(format!("lib{library}.so")), "/* nothing */\n").expect("written");
    }
    println!("cargo::rustc-link-arg-cdylib=-L{}", none.display());
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,defs,-z,dynamic-undefined-weak,-z,nopack-relative-relocs");
}

/// A jump to libc's function.
fn real(name: &str) -> String {
    format!(".weak __real_{name}\njmp qword ptr [rip + __real_{name}@GOTPCREL]")
}

/// The jump for one name.
fn jump(code: &mut String, name: &str, missing: &str) {
    let body = match missing {
        "always" => real(name),
        "memmove" => real(missing),
        "perhaps" => format!(
            ".weak __real_{name}\nmov r11, qword ptr [rip + __real_{name}@GOTPCREL]\ntest r11, r11\n\
             jz shunpike_missing\njmp r11"
        ),
        "ours" => format!("jmp shunpike_{name}"),
        // The arguments, three at most, outlive the search; the stack is aligned for it.
        "unwinder" => format!(
            "mov r11, qword ptr [rip + 2f]\ntest r11, r11\njnz 1f\n\
             push rdi\npush rsi\npush rdx\n\
             lea rdi, [rip + 3f]\nlea rsi, [rip + 2f]\ncall shunpike_unwinder\nmov r11, rax\n\
             pop rdx\npop rsi\npop rdi\n\
             1: jmp r11\n\
             .pushsection .bss,\"aw\",@nobits\n.balign 8\n2: .zero 8\n.popsection\n\
             .pushsection .rodata,\"a\",@progbits\n3: .asciz \"{name}\"\n.popsection"
        ),
        other => panic!("what is {other}?"),
    };
    writeln!(
        code,
        ".pushsection .text.__wrap_{name},\"ax\",@progbits\n.globl __wrap_{name}\n.hidden __wrap_{name}\n\
         .type __wrap_{name}, @function\n__wrap_{name}:\n{body}\n.size __wrap_{name}, . - __wrap_{name}\n.popsection"
    )
    .expect("a string");
}
