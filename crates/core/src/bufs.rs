//! The program's scattered buffers, read and written in place.

use rustix::io::Errno;
use shunpike_shm::lane::Dmb;

use crate::user::{self, Stores};

/// Most iovecs that one kernel call of ours passes on; a longer vector gives a short count, as it may.
const KERNEL_IOV: usize = 32;

/// A vector of the program's buffers, and how much of it is done.
#[derive(Copy, Clone)]
pub struct Bufs<'a> {
    iov: &'a [libc::iovec],
    done: usize,
    total: usize,
}

impl<'a> Bufs<'a> {
    /// All of `iov`, or as much as one call of the kernel moves.
    pub fn new(iov: &'a [libc::iovec]) -> Self {
        let total = iov.iter().fold(0usize, |sum, one| sum.saturating_add(one.iov_len)).min(user::MOST);
        Self { iov, done: 0, total }
    }

    /// Bytes done so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Bytes left.
    pub fn left(&self) -> usize {
        self.total - self.done
    }

    /// Marks `n` further bytes as done.
    pub fn advance(&mut self, n: usize) {
        self.done += n.min(self.left());
    }

    /// The next stretches up to `limit` bytes, as (address, length).
    fn stretches(&self, limit: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let (mut skip, mut left) = (self.done, limit.min(self.left()));
        self.iov.iter().filter_map(move |one| {
            let skipped = skip.min(one.iov_len);
            skip -= skipped;
            let len = (one.iov_len - skipped).min(left);
            left -= len;
            (len > 0).then(|| (one.iov_base.cast::<u8>().wrapping_add(skipped), len))
        })
    }

    /// The first of the next stretches with at least `least` bytes, or `part` where it is the rest of a buffer with as many:
    /// bytes before it, its address, its length.
    pub fn first_of(&self, least: usize, part: usize) -> Option<(usize, *const u8, usize)> {
        let (mut skip, mut before) = (self.done, 0);
        for one in self.iov {
            let skipped = skip.min(one.iov_len);
            skip -= skipped;
            let len = (one.iov_len - skipped).min(self.left() - before);
            if len >= if skipped > 0 && one.iov_len >= least { part } else { least } {
                return Some((before, one.iov_base.cast::<u8>().wrapping_add(skipped), len));
            }
            before += len;
        }
        None
    }

    /// Address of the next byte; null behind the last.
    pub fn address(&self) -> *mut u8 {
        self.stretches(1).next().map_or(core::ptr::null_mut(), |(base, _)| base)
    }

    /// The next stretches up to `limit` bytes, for a kernel call. Returns how many entries of `to` are set.
    pub fn for_kernel(&self, to: &mut [libc::iovec], limit: usize) -> usize {
        let mut n = 0;
        for ((base, len), slot) in self.stretches(limit).zip(to.iter_mut()) {
            *slot = libc::iovec { iov_base: base.cast(), iov_len: len };
            n += 1;
        }
        n
    }

    /// How many bytes one such call takes at most.
    pub fn one_call(&self) -> usize {
        self.stretches(usize::MAX).take(KERNEL_IOV).map(|(_, len)| len).sum()
    }

    /// Room for `for_kernel`.
    pub fn kernel_iov() -> [libc::iovec; KERNEL_IOV] {
        [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; KERNEL_IOV]
    }

    /// Copies up to `len` of the next bytes into the ring at `offset`, by these stores. Errors: EFAULT when one of the buffers cannot be
    /// read, ENOMEM when the system has no memory for the ring (a fault there, too); nothing counts as copied then.
    ///
    /// # Safety
    /// `len` is at most the window and the stretch is the caller's.
    #[inline]
    pub unsafe fn fill(&self, dmb: &Dmb, mut offset: u64, len: usize, stores: Stores) -> Result<(), Errno> {
        for (base, n) in self.stretches(len) {
            let mut done = 0;
            while done < n {
                let (to, room) = dmb.span(offset);
                let part = (n - done).min(room);
                // SAFETY: `part` bytes fit before the window's end; the stretch is the caller's.
                unsafe { user::copy_by(stores, to, base.wrapping_add(done), part) }
                    .map_err(|fault| blame(fault, dmb))?;
                done += part;
                offset += part as u64;
            }
        }
        Ok(())
    }

    /// Copies `len` bytes at `from` to the next buffers. Errors: EFAULT.
    ///
    /// # Safety
    /// The buffers are the program's to write to, where they are mapped; `from` is readable for `len` bytes.
    #[inline]
    pub unsafe fn give(&self, mut from: *const u8, len: usize) -> Result<(), Errno> {
        for (base, n) in self.stretches(len) {
            // SAFETY: the caller's word for it.
            unsafe { user::copy(base, from, n) }.map_err(|_| Errno::FAULT)?;
            from = from.wrapping_add(n);
        }
        Ok(())
    }

    /// Copies `len` bytes of the ring at `offset` to the next buffers. Errors: as in `fill`.
    ///
    /// # Safety
    /// The buffers are the program's to write to, where they are mapped; `len` is at most the window.
    #[inline]
    pub unsafe fn drain(&self, dmb: &Dmb, mut offset: u64, len: usize) -> Result<(), Errno> {
        for (base, n) in self.stretches(len) {
            let mut done = 0;
            while done < n {
                let (from, room) = dmb.span(offset);
                let part = (n - done).min(room);
                // SAFETY: as in `fill`. The peer may change the bytes meanwhile: they are its bytes.
                unsafe { user::copy(base.wrapping_add(done), from, part) }
                    .map_err(|fault| blame(fault, dmb))?;
                done += part;
                offset += part as u64;
            }
        }
        Ok(())
    }
}

/// Whose memory a copy faulted on.
#[cold]
fn blame(user::Fault(at): user::Fault, dmb: &Dmb) -> Errno {
    let start = Dmb::start_of(dmb.address());
    if (start..start + Dmb::len_at(dmb.address())).contains(&at) { Errno::NOMEM } else { Errno::FAULT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_walked_from_where_it_stands() {
        let mut memory = [0u8; 10];
        let base = memory.as_mut_ptr();
        let iov = [(0, 3), (3, 0), (3, 7)]
            .map(|(at, len)| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len });
        let mut bufs = Bufs::new(&iov);
        bufs.advance(2);
        assert_eq!(bufs.left(), 8);
        let found: Vec<_> = bufs.stretches(4).map(|(at, n)| (at as usize - base as usize, n)).collect();
        assert_eq!(found, [(2, 1), (3, 3)]);
        assert_eq!(bufs.first_of(7, 7), Some((1, base.wrapping_add(3).cast_const(), 7)));
        assert_eq!(bufs.first_of(3, 1), Some((0, base.wrapping_add(2).cast_const(), 1)));
        assert_eq!(bufs.first_of(8, 1), None);
        assert_eq!(bufs.address(), base.wrapping_add(2));
        bufs.advance(100);
        assert_eq!((bufs.left(), bufs.stretches(9).count()), (0, 0));
    }
}
