//! What a program has beside the kernel: nothing that can be asked.

/// What is looked at here are the kernel's structures, whatever the libc made of the program's.
pub fn is_musl() -> bool {
    false
}
