/work/main/release/entry/release/deps/shunpike_arch-86603aa079113d02.d: /work/main/crates/arch/src/lib.rs /work/main/crates/arch/src/x86_64.rs

/work/main/release/entry/release/deps/libshunpike_arch-86603aa079113d02.rlib: /work/main/crates/arch/src/lib.rs /work/main/crates/arch/src/x86_64.rs

/work/main/release/entry/release/deps/libshunpike_arch-86603aa079113d02.rmeta: /work/main/crates/arch/src/lib.rs /work/main/crates/arch/src/x86_64.rs

/work/main/crates/arch/src/lib.rs:
/work/main/crates/arch/src/x86_64.rs:
