//! Why a program stays as it is: each reason has a number that tools and logs can keep.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $text:literal])+ $name:ident = $code:literal,)+) => {
        /// Why a program is not patched.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Reason { $($(#[doc = $text])+ $name = $code,)+ }

        impl Reason {
            /// All, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// One sentence for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => concat!($($text),+),)+ }
            }
        }
    };
}

reasons! {
    /// The file cannot be read.
    Unreadable = 1,
    /// It is no ELF file.
    NotElf = 2,
    /// It is a script: its interpreter is what is executed.
    Script = 3,
    /// It is for another processor, or no program.
    OtherMachine = 4,
    /// Its ELF structures are cut off or contradict each other.
    Malformed = 5,
    /// Segments overlap in memory.
    Overlapping = 6,
    /// A segment can be both written and executed.
    WritableText = 7,
    /// It would gain rights by its mode or capabilities: it is never traced.
    Privileged = 8,
    /// A libc is loaded into it: the preloaded library is its entry.
    HasLibc = 9,
    /// There is no text in its file.
    NoText = 10,
    /// It makes no system calls of its own.
    NoSites = 20,
    /// It cannot be decided whether some bytes are a system call.
    Undecided = 21,
    /// A jump does not fit over one of its system calls.
    DoesNotFit = 22,
    /// Two of its system calls are too near to each other.
    TooNear = 23,
    /// It uses the GS base itself.
    UsesGs = 24,
    /// An instruction cannot be moved.
    Immovable = 25,
    /// It has more places that may be system calls than any program has.
    TooMany = 26,
    /// The processor or kernel (Linux 5.9 and later) does not let programs set the GS base.
    NoGsBase = 40,
    /// No tracer may attach to it: kernel.yama.ptrace_scope, a filter of system calls, or a debugger that is there already.
    NotTraceable = 41,
    /// Another file was executed than the one that was looked at.
    OtherFile = 42,
    /// There is no room for the stubs within reach of its text.
    NoRoom = 43,
    /// A system call that maps the stubs failed in it.
    MapFailed = 44,
    /// Its text in memory is not that of its file.
    TextDiffers = 45,
    /// Its text cannot be written.
    NotWritable = 46,
    /// It ended, or was lost, before it was patched.
    Gone = 47,
    /// The library that is to be loaded into it cannot be read, or is none.
    NoLibrary = 48,
}

impl Reason {
    /// The number.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.text().trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_ascend() {
        assert!(Reason::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
        assert_eq!(Reason::Script.to_string(), "3: It is a script: its interpreter is what is executed.");
    }
}
