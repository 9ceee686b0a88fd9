//! Whether and for how long a call waits: by its flags, and by the socket's options, which the kernel is asked for once, and only
//! when it comes to that.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Block, Half};

use crate::call;
use crate::sets;
use crate::table::Conn;
use crate::wait::{Nap, Napped};

/// TCP is asked how it is at most this often by calls that need not wait, microseconds.
pub const UNWATCHED_US: u64 = 500;

/// TCP is asked so often by calls that move bytes, microseconds: seldom where an epoll set watches it anyway.
pub fn tcp_check_us(fd: i32) -> u64 {
    if sets::watches(fd) { 50_000 } else { UNWATCHED_US }
}

/// Of one call.
pub struct Blocking {
    /// Whether it blocks, once that is known: O_NONBLOCK counts as it stood when the call began.
    blocks: Option<bool>,
    /// It was clear, as far as we know, when the first part was moved.
    began_blocking: bool,
    /// SO_RCVTIMEO or SO_SNDTIMEO.
    option: i32,
    asked: bool,
    timeout: Option<u64>,
    deadline: Option<u64>,
    /// Counts of handled signals when the call began, or last went on after some.
    signals: (u32, u32),
    /// It has moved bytes.
    has_part: bool,
}

impl Blocking {
    /// Of a call with these flags, whose time `option` bounds.
    pub fn new(flags: i32, option: i32) -> Self {
        Self {
            blocks: (flags & libc::MSG_DONTWAIT != 0).then_some(false),
            option,
            began_blocking: false,
            asked: false,
            timeout: None,
            deadline: None,
            signals: call::restarts_before(),
            has_part: false,
        }
    }

    /// Whether the call blocks, as far as we know.
    pub fn may_wait(&self, block: &Block) -> bool {
        self.blocks.unwrap_or_else(|| self.began_blocking || block.nonblock.load(Ordering::Relaxed) == 0)
    }

    /// Of a call that is about to say EAGAIN: whether it blocks after all, as O_NONBLOCK was cleared by a call that no hook saw. Asks the kernel.
    pub fn blocks_after_all(&self, block: &Block, fd: i32) -> bool {
        let blocks = self.blocks.is_none() && call::must_block(block, fd).is_ok();
        if blocks {
            block.nonblock.store(0, Ordering::Relaxed);
        }
        blocks
    }

    /// Asks the kernel, unless it was. Errors: EAGAIN when the call does not block.
    pub fn ask(&mut self, conn: Conn, fd: i32) -> Result<(), Errno> {
        if self.asked {
            return Ok(());
        }
        self.asked = true;
        // Who has set it since, by a call that we saw, has done so too late for this one.
        if self.blocks.is_none() && !(self.began_blocking && call::is_told_nonblock(conn.block)) {
            call::must_block(conn.block, fd).inspect_err(|_| self.blocks = Some(false))?;
        }
        self.blocks.get_or_insert(true);
        self.timeout = call::timeout_option(fd, self.option);
        self.deadline = call::deadline(self.timeout);
        Ok(())
    }

    /// Nanoseconds that are left. Errors: EAGAIN when the program's time is over.
    pub fn remaining(&self) -> Result<Option<u64>, Errno> {
        call::remaining(self.deadline)
    }

    /// The call has moved a part, and goes on: a signal ends it from now on, whatever its handler's flags.
    pub fn moved(&mut self, block: &Block) {
        self.began_blocking |= !self.has_part && block.nonblock.load(Ordering::Relaxed) == 0;
        self.has_part = true;
    }

    /// After a sleep that a signal ended; see [`call::interrupted`]. The kernel's call begins anew then, and the signal is forgotten. Errors: EINTR.
    pub fn interrupted(&mut self) -> Result<(), Errno> {
        if self.has_part {
            return Err(Errno::INTR);
        }
        let now = call::restarts_before();
        call::interrupted(self.signals, self.timeout.is_some())?;
        self.signals = now;
        Ok(())
    }

    /// Before a sleep, with all declared that ends it: a signal that was handled meanwhile would have ended the kernel's. Errors: EINTR.
    pub fn attend_signals(&mut self) -> Result<(), Errno> {
        if call::restarts_before() == self.signals { Ok(()) } else { self.interrupted() }
    }

    /// Naps on what `declare` declares, in a critical section, or does not: then it says what that comes to. Errors: EAGAIN when
    /// the program's time is over, EINTR, EBADF.
    pub fn nap(
        &mut self,
        conn: Conn,
        fd: i32,
        half: &Half,
        declare: impl FnOnce() -> Result<Nap, Napped>,
    ) -> Result<Napped, Errno> {
        let remaining = self.remaining()?;
        let declared = {
            let _critical = crate::tls::critical();
            declare()
        };
        let nap = match declared {
            Ok(nap) => nap,
            Err(napped) => return Ok(napped),
        };
        self.attend_signals()?;
        let napped = nap.take(fd, half, remaining);
        call::still_at(conn, fd)?;
        if napped == Napped::Interrupted {
            self.interrupted()?;
        }
        Ok(napped)
    }
}
