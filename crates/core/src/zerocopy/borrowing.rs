//! Borrowing: a receiver's reads of bytes that are not in the ring but in the sender's memory (shm's `loans`).
//!
//! Large reads go from there straight into the program's buffers, by process_vm_readv(2). For small ones, and for
//! MSG_PEEK, a piece of the loan is fetched into the copy that `peek` keeps, and read from there. Each call to the kernel
//! reads the sender's witness first, so that no other process is taken for it, and asks after it whether the loan still stood.
//!
//! The process is the one that the broker named. What cannot be read its sender is asked to take back (`rx::ask_back`), whatever the
//! reason: while TCP stands it may still have it. Where it is gone, the connection is reset, after all bytes before.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::RxHeld;
use shunpike_shm::lane::Dmb;
use shunpike_shm::lane::loans::{Lent, Loan, SLOTS, Witness};

use crate::bufs::Bufs;
use crate::copy_rate::{self, Way};
use crate::{peek, sys, user};

/// Reads of fewer bytes are served from a copy,
const SMALL: usize = 16 * 1024;
/// A copy has so many bytes at a time.
const PIECE: u64 = 64 * 1024;

/// How much is left to be read when a sender that sleeps is told of what was consumed, of `outstanding` bytes: a wake-up for each call
/// would cost both more than it has saved, and one in time keeps the reader busy until more comes. Who hears nothing looks after
/// the grace.
fn left_when_told(outstanding: u64) -> u64 {
    /// Reading so much takes as long as a wake-up, or somewhat longer.
    const WAKE_UP: u64 = 1 << 20;
    if outstanding < WAKE_UP { 0 } else { (outstanding / 4).max(WAKE_UP.min(outstanding / 2)) }
}

/// Why a read gave nothing.
pub enum Failure {
    /// The program's own mistake.
    Errno(Errno),
    /// The sender wrote what it must not.
    Violated,
    /// The sender's memory cannot be read: it is not there any more (EFAULT), its process has lost its first thread (ESRCH), or the kernel
    /// does not let us any more, as one of us has become somebody else.
    Unreadable,
}

/// One read under the receive lock.
struct Read<'a> {
    half: RxHeld<'a>,
    dmb: &'a Dmb,
    /// Offset up to which bytes are published, and the sender's count of loans then.
    prod: u64,
    lent: Lent,
    /// Number of the next loan.
    number: u32,
    /// The last one that was found recalled: it stays so, whatever its sender writes.
    recalled: Option<u32>,
}

/// Answers a sender that would lend.
pub fn probe(half: RxHeld<'_>, dmb: &Dmb) {
    let mut nothing = Bufs::kernel_iov();
    let can = fetch(half, dmb.words().witness(), &mut nothing[..1], &mut Remote::new()) == Ok(0);
    dmb.words().answer(can);
    half.own().loans.store(Lent::of(0).0, Ordering::Relaxed);
}

/// Copies up to `n` unread bytes at `offset` to the program, as `peek::deliver` does where nothing is lent; returns how
/// many. `prod`: offset up to which bytes are published.
pub fn deliver(
    half: RxHeld<'_>,
    dmb: &Dmb,
    bufs: &Bufs<'_>,
    (offset, prod): (u64, u64),
    n: usize,
    flags: i32,
) -> Result<usize, Failure> {
    if flags & libc::MSG_TRUNC != 0 || n == 0 {
        return Ok(n);
    }
    let own = half.own();
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut read = Read::new(half, dmb, prod);
    let (mut rest, mut at, end) = (*bufs, offset, offset + n as u64);
    while at < end {
        let left = (end - at) as usize;
        let known = own.peeked.load(Ordering::Relaxed).saturating_sub(at).min(left as u64) as usize;
        if known > 0
            && let Some(copy) = peek::copy_of(half, dmb, None)
        {
            // SAFETY: the program's buffers; the copy has the ring's size, and `known` is at most what is unread.
            unsafe { rest.drain(&copy, at, known) }.map_err(Failure::Errno)?;
            rest.advance(known);
            at += known as u64;
            continue;
        }
        let loan = read.loan_at(at)?;
        let direct = loan.filter(|loan| loan.at <= at && read.stands());
        let Some(loan) = direct else {
            // In the ring, up to the loan that comes next or to the end of this one.
            let to = loan.map_or(end, |loan| if loan.at > at { loan.at } else { loan.end() }).min(end);
            let n = (to - at) as usize;
            if peeks && let Some(copy) = peek::copy_of(half, dmb, Some(offset)) {
                copy.copy_from(dmb, at, n);
                own.peeked.store(to, Ordering::Relaxed);
                continue;
            }
            // SAFETY: as above.
            unsafe { rest.drain(dmb, at, n) }.map_err(Failure::Errno)?;
            rest.advance(n);
            at = to;
            continue;
        };
        let n = (loan.end().min(end) - at) as usize;
        if (peeks || n < SMALL)
            && let Some(copy) = peek::copy_of(half, dmb, Some(offset))
        {
            // The copy has all bytes from the cursor on, or none.
            if !peeks && at > offset {
                break;
            }
            let n = (loan.end() - at).min(PIECE);
            match copy_rate::timed(&own.paces, Way::Lent, || read.fill_copy(&copy, &loan, at, n as usize)) {
                Ok(0) => {}
                Ok(n) => own.peeked.store(at + n as u64, Ordering::Relaxed),
                Err(failure) => return so_far(at - offset, failure),
            }
            continue;
        }
        match copy_rate::timed(&own.paces, Way::Lent, || read.direct(&rest, &loan, (at, end))) {
            Ok(n) => {
                rest.advance(n);
                at += n as u64;
            }
            Err(failure) => return so_far(at - offset, failure),
        }
    }
    Ok((at - offset) as usize)
}

/// Bytes before a failure come first; the next read meets it again.
fn so_far(n: u64, failure: Failure) -> Result<usize, Failure> {
    if n > 0 && !matches!(failure, Failure::Errno(_)) { Ok(n as usize) } else { Err(failure) }
}

/// All before `cursor` is consumed: loans that ended there are over.
pub fn consumed(half: RxHeld<'_>, dmb: &Dmb, cursor: u64) {
    let lent = dmb.words().lent();
    let mut number = next_number(half, lent);
    while number != lent.count() && dmb.words().loan(number).end() <= cursor {
        number = number.wrapping_add(1);
    }
    half.own().loans.store(Lent::of(number).0, Ordering::Relaxed);
}

/// Number of the first loan that may be unread, when the sender's count is `lent`: at most [`SLOTS`] before it.
fn next_number(half: RxHeld<'_>, lent: Lent) -> u32 {
    let known = Lent(half.own().loans.load(Ordering::Relaxed)).count();
    // Only a reader that died before it wrote down how far it had come, or a sender that lies, is further behind.
    if lent.count().wrapping_sub(known) > SLOTS { lent.count().wrapping_sub(SLOTS) } else { known }
}

/// Whether the sender is told now that the bytes from `before` up to `cursor` were consumed, with `prod` published.
pub fn tells(half: RxHeld<'_>, before: u64, cursor: u64, prod: u64) -> bool {
    let [seen, due] = &half.own().tell;
    if seen.swap(prod, Ordering::Relaxed) != prod {
        due.store(prod - left_when_told(prod - before), Ordering::Relaxed);
    }
    let due = due.load(Ordering::Relaxed);
    cursor == prod || before < due && due <= cursor
}

impl<'a> Read<'a> {
    fn new(half: RxHeld<'a>, dmb: &'a Dmb, prod: u64) -> Self {
        let lent = dmb.words().lent();
        Self { half, dmb, prod, lent, number: next_number(half, lent), recalled: None }
    }

    /// The loan that has the byte at `at`, or else the next one behind it.
    fn loan_at(&mut self, at: u64) -> Result<Option<Loan>, Failure> {
        while self.number != self.lent.count() {
            let loan = self.dmb.words().loan(self.number);
            if loan.at >= self.prod {
                // Its bytes are not published yet.
                return Ok(None);
            }
            if loan.end() > self.prod {
                return Err(Failure::Violated);
            }
            if loan.end() > at {
                let fits = loan.len <= self.dmb.window();
                return if fits { Ok(Some(loan)) } else { Err(Failure::Violated) };
            }
            // One that was read: who inherits from a reader that was killed meets it still, and the window may be smaller since.
            self.number = self.number.wrapping_add(1);
        }
        Ok(None)
    }

    /// Whether the next loan stands still.
    fn stands(&mut self) -> bool {
        let stands = self.recalled != Some(self.number) && self.dmb.words().stands(self.number);
        if !stands {
            self.recalled = Some(self.number);
        }
        stands
    }

    /// `n` bytes at `at` of a loan into the copy's places for them. 0: they are in the ring now.
    fn fill_copy(&mut self, copy: &Dmb, loan: &Loan, at: u64, n: usize) -> Result<usize, Failure> {
        let (to, room) = copy.span(at);
        let first = n.min(room);
        let mut iov = Bufs::kernel_iov();
        iov[1] = libc::iovec { iov_base: to.cast(), iov_len: first };
        iov[2] = libc::iovec { iov_base: copy.span(at + first as u64).0.cast(), iov_len: n - first };
        let mut remote = Remote::new();
        remote.push(loan.from.wrapping_add(at - loan.at), n);
        let got = fetch(self.half, self.dmb.words().witness(), &mut iov[..3], &mut remote);
        match got {
            _ if !self.stands() => Ok(0),
            Ok(0) => Err(Failure::Unreadable),
            Ok(n) => Ok(n),
            Err(_) => Err(Failure::Unreadable),
        }
    }

    /// Bytes of a loan and of those right behind it, from offset `at` up to `end`, into the program's buffers: how many. 0: they are in
    /// the ring now.
    fn direct(&mut self, bufs: &Bufs<'_>, loan: &Loan, (at, end): (u64, u64)) -> Result<usize, Failure> {
        let mut remote = Remote::new();
        let (mut loan, mut number, mut to) = (*loan, self.number, at);
        loop {
            let n = loan.end().min(end) - to;
            remote.push(loan.from.wrapping_add(to - loan.at), n as usize);
            to += n;
            number = number.wrapping_add(1);
            if to == end || remote.is_full() || number == self.lent.count() {
                break;
            }
            loan = self.dmb.words().loan(number);
            // What is wrong with it is found when it is the next one.
            let follows = loan.at == to && loan.len > 0 && loan.end() <= self.prod;
            if !follows || !self.dmb.words().stands(number) {
                break;
            }
        }
        let mut iov = Bufs::kernel_iov();
        let used = 1 + bufs.for_kernel(&mut iov[1..], (to - at) as usize);
        let asked: usize = iov[1..used].iter().map(|one| one.iov_len).sum();
        let got = fetch(self.half, self.dmb.words().witness(), &mut iov[..used], &mut remote);
        if !self.stands() {
            return Ok(0);
        }
        let stood = remote.lens().zip(0u32..).take_while(|&(_, behind)| {
            behind == 0 || self.dmb.words().stands(self.number.wrapping_add(behind))
        });
        let stood: usize = stood.map(|(len, _)| len).sum();
        match got {
            Ok(got) if got == asked => Ok(got.min(stood)),
            // Which of the two stretches ends there?
            got => {
                let n = got.unwrap_or(0).min(stood);
                let mut rest = *bufs;
                rest.advance(n);
                let to = rest.address();
                // SAFETY: the program gave us its buffers to write to.
                if !unsafe { user::writable(to, 1) } {
                    Err(Failure::Errno(Errno::FAULT))
                } else if n > 0 {
                    Ok(n)
                } else {
                    Err(Failure::Unreadable)
                }
            }
        }
    }
}

/// Stretches of the sender's memory that one call reads: the witness's first, then those of loans that follow each other.
struct Remote {
    iov: [libc::iovec; 1 + Self::MOST],
    used: usize,
}

impl Remote {
    const MOST: usize = 8;

    fn new() -> Self {
        Self { iov: [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 1 + Self::MOST], used: 1 }
    }

    fn set(&mut self, index: usize, at: u64, len: usize) {
        self.iov[index] =
            libc::iovec { iov_base: core::ptr::without_provenance_mut(at as usize), iov_len: len };
    }

    fn push(&mut self, at: u64, len: usize) {
        self.set(self.used, at, len);
        self.used += 1;
    }

    fn is_full(&self) -> bool {
        self.used == self.iov.len()
    }

    /// How much is read of each loan.
    fn lens(&self) -> impl Iterator<Item = usize> {
        self.iov[1..self.used].iter().map(|one| one.iov_len)
    }
}

/// Reads `remote` of the peer into `iov`; the first entries of both are the witness's. Errors: ESRCH, it is not that process; others
/// as the call says.
fn fetch(
    half: RxHeld<'_>,
    witness: Witness,
    iov: &mut [libc::iovec],
    remote: &mut Remote,
) -> Result<usize, Errno> {
    let pid = half.lender.load(Ordering::Relaxed);
    let mut found = [0u64; 2];
    // A page that a fork has wiped is nobody's witness.
    if pid == 0 || witness.value == found {
        return Err(Errno::PERM);
    }
    let size = size_of_val(&found);
    iov[0] = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: size };
    remote.set(0, witness.at, size);
    let got = sys::read_process(pid, iov, &remote.iov[..remote.used])?;
    match got.checked_sub(size) {
        Some(got) if found == witness.value => Ok(got),
        _ => Err(Errno::SRCH),
    }
}
