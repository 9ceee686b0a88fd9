//! A stopped process: its registers and memory, and system calls in its name.

use crate::reason::Reason;
use libc::{c_int, pid_t, user_regs_struct};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::{fs, io, mem, ptr};

/// What a traced process has come to.
pub enum Stop {
    /// A new program is about to begin.
    Exec,
    /// It is about to make a system call, or has made it.
    Call,
    /// It has a new child, which is traced, too.
    Child,
    /// A signal is about to be delivered.
    Signal(c_int),
    /// It is stopped as a group, and stays so.
    Group,
    /// It was interrupted, has begun to be traced, or its group goes on.
    Interrupted,
    /// It is no more.
    Gone,
}

/// One process that this one traces. Dropping it does nothing: the kernel lets it go when the tracer ends.
pub struct Remote {
    pid: pid_t,
    memory: Option<File>,
    /// Signals that came while calls were made, and are sent again afterwards.
    later: Vec<c_int>,
}

impl Remote {
    /// Traces `pid` from its next exec on, without stopping it.
    pub fn seize(pid: pid_t) -> Result<Self, Reason> {
        Self::seize_for(pid, 0)
    }

    /// Traces `pid` from its next exec on, with its system calls, when [`go_on_to_call`](Self::go_on_to_call) says so, and with what else these options tell.
    pub fn seize_for(pid: pid_t, options: c_int) -> Result<Self, Reason> {
        let options = (options | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize;
        ask(libc::PTRACE_SEIZE, pid, 0, options).map_err(|_| Reason::NotTraceable)?;
        Ok(Self { pid, memory: None, later: Vec::new() })
    }

    /// Stops it as soon as it is in no call that nothing interrupts.
    pub fn interrupt(&self) -> Result<(), Reason> {
        ask(libc::PTRACE_INTERRUPT, self.pid, 0, 0).map_err(|_| Reason::Gone)
    }

    /// The child of [`Stop::Child`].
    pub fn child(&self) -> Result<Self, Reason> {
        let mut pid: libc::c_ulong = 0;
        ask(libc::PTRACE_GETEVENTMSG, self.pid, 0, (&raw mut pid).addr()).map_err(|_| Reason::Gone)?;
        Ok(Self { pid: pid as pid_t, memory: None, later: Vec::new() })
    }

    /// Waits until it stops.
    pub fn wait(&self) -> Stop {
        let mut status = 0;
        // SAFETY: plain system call with a pointer to a local variable.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } == -1 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Stop::Gone;
            }
        }
        match (libc::WIFSTOPPED(status), status >> 16) {
            (false, _) => Stop::Gone,
            (true, libc::PTRACE_EVENT_EXEC) => Stop::Exec,
            (true, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => {
                Stop::Child
            }
            (true, libc::PTRACE_EVENT_STOP) if libc::WSTOPSIG(status) == libc::SIGTRAP => Stop::Interrupted,
            (true, libc::PTRACE_EVENT_STOP) => Stop::Group,
            (true, _) if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Stop::Call,
            (true, _) => Stop::Signal(libc::WSTOPSIG(status)),
        }
    }

    /// Lets it go on, with a signal or 0.
    pub fn go_on(&self, signal: c_int) {
        let _ = ask(libc::PTRACE_CONT, self.pid, 0, signal as usize);
    }

    /// Lets it go on until its next system call.
    pub fn go_on_to_call(&self, signal: c_int) {
        let _ = ask(libc::PTRACE_SYSCALL, self.pid, 0, signal as usize);
    }

    /// Lets it stay in its group's stop.
    pub fn listen(&self) {
        let _ = ask(libc::PTRACE_LISTEN, self.pid, 0, 0);
    }

    /// Lets it go for good.
    pub fn release(self) {
        for signal in &self.later {
            // SAFETY: plain system call.
            unsafe { libc::kill(self.pid, *signal) };
        }
        let _ = ask(libc::PTRACE_DETACH, self.pid, 0, 0);
    }

    /// Whether it dies with this process. While its registers and text are neither the old ones nor the new ones it must.
    pub fn bind(&self, dies: bool) -> Result<(), Reason> {
        let options = libc::PTRACE_O_TRACEEXEC | if dies { libc::PTRACE_O_EXITKILL } else { 0 };
        ask(libc::PTRACE_SETOPTIONS, self.pid, 0, options as usize).map_err(|_| Reason::Gone)
    }

    /// Its registers.
    pub fn registers(&self) -> Result<user_regs_struct, Reason> {
        // SAFETY: all bytes 0 are registers, too.
        let mut registers: user_regs_struct = unsafe { mem::zeroed() };
        ask(libc::PTRACE_GETREGS, self.pid, 0, (&raw mut registers).addr()).map_err(|_| Reason::Gone)?;
        Ok(registers)
    }

    /// Sets them.
    pub fn set_registers(&self, registers: &user_regs_struct) -> Result<(), Reason> {
        ask(libc::PTRACE_SETREGS, self.pid, 0, ptr::from_ref(registers).addr()).map_err(|_| Reason::Gone)?;
        Ok(())
    }

    /// Which signals it blocks.
    pub fn mask(&self) -> Result<u64, Reason> {
        let mut mask = 0u64;
        ask(libc::PTRACE_GETSIGMASK, self.pid, 8, (&raw mut mask).addr()).map_err(|_| Reason::Gone)?;
        Ok(mask)
    }

    /// Sets that.
    pub fn set_mask(&self, mask: u64) -> Result<(), Reason> {
        ask(libc::PTRACE_SETSIGMASK, self.pid, 8, (&raw const mask).addr()).map_err(|_| Reason::Gone)?;
        Ok(())
    }

    /// Makes a system call in its name, by the instruction at `site`. All registers may be others afterwards.
    pub fn call(&mut self, site: u64, number: i64, arguments: [u64; 6]) -> Result<Result<u64, i32>, Reason> {
        let mut registers = self.registers()?;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
        registers.rax = number as u64;
        registers.rip = site;
        // Not on its way back from a call that might be restarted.
        registers.orig_rax = u64::MAX;
        loop {
            self.set_registers(&registers)?;
            ask(libc::PTRACE_SINGLESTEP, self.pid, 0, 0).map_err(|_| Reason::Gone)?;
            match self.wait() {
                Stop::Signal(libc::SIGTRAP) => {}
                Stop::Signal(signal) => self.later.push(signal),
                Stop::Exec | Stop::Call | Stop::Child | Stop::Group | Stop::Interrupted => {}
                Stop::Gone => return Err(Reason::Gone),
            }
            let after = self.registers()?;
            // The first step only leaves exec, whose result becomes rax then.
            if after.rip != site {
                let result = after.rax as i64;
                let is_error = (-4095..0).contains(&result);
                return Ok(if is_error { Err(-result as i32) } else { Ok(after.rax) });
            }
        }
    }

    fn memory(&mut self) -> Result<&File, Reason> {
        if self.memory.is_none() {
            let file = File::options().read(true).write(true).open(format!("/proc/{}/mem", self.pid));
            self.memory = Some(file.map_err(|_| Reason::NotWritable)?);
        }
        self.memory.as_ref().ok_or(Reason::NotWritable)
    }

    /// Reads its memory.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Reason> {
        self.memory()?.read_exact_at(into, at).map_err(|_| Reason::TextDiffers)
    }

    /// Writes its memory, whatever its protection.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Reason> {
        self.memory()?.write_all_at(bytes, at).map_err(|_| Reason::NotWritable)
    }

    /// Its file.
    pub fn executable(&self) -> io::Result<fs::Metadata> {
        fs::metadata(format!("/proc/{}/exe", self.pid))
    }

    /// The words of its auxiliary vector.
    pub fn auxiliary(&self) -> io::Result<Vec<(u64, u64)>> {
        let bytes = fs::read(format!("/proc/{}/auxv", self.pid))?;
        let (words, _) = bytes.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        Ok(pairs.iter().map(|[key, value]| (u64::from_ne_bytes(*key), u64::from_ne_bytes(*value))).collect())
    }

    /// What it has mapped, in the order of addresses.
    pub fn mappings(&self) -> io::Result<Vec<Range<u64>>> {
        let text = fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        let parse = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        };
        Ok(text.lines().filter_map(parse).collect())
    }
}

/// By the system call: libcs differ in the request's type.
fn ask(request: impl Into<i64>, pid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: `data` points to what the request reads or writes, where it does.
    let got = unsafe { libc::syscall(libc::SYS_ptrace, request.into(), pid, address, data) };
    if got == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
