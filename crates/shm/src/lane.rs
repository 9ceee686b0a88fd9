//! A lane: one direction of a connection, a ring in the receiver's DMB and the words that rule it.
//!
//! The rules are those of models/lane.pml (data, revocation), models/wake.pml (sleep and wake) and
//! models/handshake.pml (grant and begin); ring *R*, sender *S*:
//!
//! | word | offset | writer | reader | a hostile value can |
//! |---|---|---|---|---|
//! | prod | 0x000 | S publishes, ENDs; R sets STOP, LEAVE | both | end the lane, reset the connection (beyond the ring: refused) |
//! | reach | 0x088 | R | S | be more than R can read: R's own loss |
//! | cons | 0x080 | R consumes; S sets TAKEN, UNPAID | both | end the lane, reset the connection; S never reads behind it but its own ring bytes |
//! | start | 0x100 | S | R | make R wait for TCP bytes that never come: R's TCP count is compared, a mismatch resets |
//! | rwait | 0x180 | R declares; S clears | S | cost S a needless post or futex wake, or R its wake-up |
//! | wwait | 0x200 | S declares; R clears | R | the same the other way round |
//! | woken | 0x188, 0x208 | who wakes a nap | who napped | lie in the other's statistics of wake-ups |
//! | window | 0x008 | S | R | give R other bytes of the DMB than were written: they are S's bytes anyway |
//! | held | 0x010 | S | R | have R overlook bytes of S's for a while: as if S had sent them later |
//! | lent | 0x018 | S | R | see [`loans`], as what follows from 0x280 on |
//! | short | 0x020 | S | R | see [`short`] |
//!
//! A lane begins with a *first ring*, in the page that the words are in: a connection with short messages touches one page in
//! each direction, and no other. When more room is needed, S goes on in the *ring* behind the header, from some offset on, and says so in
//! the window's word ([`Window`]). The two places have no byte in common: whatever is unread in the first ring stays there until it is read, and R
//! reads up to that offset there. S comes back to the first ring only when nothing is unread.
//!
//! The ring *grows in place*: of the DMB's capacity only a window is used, byte `o` of the lane lies at `o` modulo
//! the window. S doubles it only while both windows put all that is unread at the same places, so that R may read it
//! by either; as when the producer stands at an odd multiple of the window.
//!
//! Neither end maps more than it uses: a lane begins with the start of the DMB, R says in `reach` how large a window it can read, and both map
//! more when the window has come to the end of what they have.
//!
//! Each word lies on a pair of cache lines of its own (adjacent-line prefetch). Offsets are from where the words begin: the
//! DMB's start, or a multiple of [`COLOUR`] behind it by its token ([`Dmb::words_at`]). Were it the start of a page for all,
//! the cursors of all lanes would share the few places that a cache has for such addresses: those of more than 128 connections
//! (two DMBs each; 16 ways, 16 sets of 1024 in a second level of 1 MiB) would push each other out. Whatever is read here is
//! one copy, checked by the caller against its private cursor before use.

pub mod loans;
pub mod short;
mod words;

pub(crate) use words::Line;
#[cfg(all(test, not(loom)))]
pub(crate) use words::layout;
pub use words::{Cursor, Held, Side, Wait, Window, Words};

#[cfg(not(loom))]
use loans::Loans;

#[cfg(not(loom))]
use crate::primitive::{Ordering, SharedU64};
use crate::region::Region;

/// Bytes before the ring in a DMB: a page with the words and the first ring, and one with the loans' slots, which is there when something is lent.
pub const HEADER: usize = 2 * PAGE;
/// What memory comes in.
pub const PAGE: usize = 4096;
/// Where in its first page a DMB's first ring is, behind the words wherever they begin.
const FIRST_AT: usize = PAGE - FIRST_WINDOW as usize;
/// Fewest bytes of a ring that are mapped.
const SMALLEST: u32 = 4096;
/// In a DMB's address: how often these are doubled.
const ORDER: usize = 15;
const _: () = assert!(ORDER < COLOUR && (SMALLEST as usize) << ORDER >= ring_size(MAX_CLASS));
/// Distance between two places where a DMB's words can begin, bytes: a pair of cache lines.
pub const COLOUR: usize = 128;
/// How many such places there are.
const COLOURS: usize = 8;
/// Generations that one DMB can serve; 0 is "never granted".
pub const MAX_GENERATION: u32 = (1 << 12) - 1;
/// A lane ends itself before its offset gets here: cursors never wrap within reach of a stale view.
pub const MAX_OFFSET: u64 = 1 << 47;

/// Size of the ring of class `n`: 16 KiB << n, bytes (SMC-D's dmbe_size, RFC 7609 and net/smc/smc_ism.h).
pub const fn ring_size(class: u8) -> usize {
    16384 << class
}

/// Largest size class, 16 MiB.
pub const MAX_CLASS: u8 = 10;
/// Window that a lane begins with, bytes: all of the first ring.
pub const FIRST_WINDOW: u32 = 2048;
/// The least behind the header, bytes: two of them stay in a core's first-level cache.
pub const MIN_WINDOW: u32 = 16384;

/// A mapped DMB: its words and its ring, of which a window is in use.
#[derive(Copy, Clone)]
pub struct Dmb {
    words: &'static Words,
    ring: *mut u8,
    capacity: u32,
    mapped: u32,
    window: u32,
    /// Bytes before this offset are in the first ring, whatever the window.
    until: u64,
}

// SAFETY: words are atomics; ring bytes are copied raw, as cursors allow.
unsafe impl Send for Dmb {}
// SAFETY: as above.
unsafe impl Sync for Dmb {}

impl Dmb {
    /// Bytes of a DMB of size class `class`.
    pub const fn len(class: u8) -> usize {
        HEADER + ring_size(class)
    }

    /// Byte of a DMB at which its words begin: both ends know its token.
    pub const fn words_at(token: u64) -> usize {
        token as usize % COLOURS * COLOUR
    }

    /// The DMB named `token`, all of which is in `region`.
    pub fn new(region: Region, token: u64) -> Option<Self> {
        Self::part(region, token, u32::try_from(region.len().checked_sub(HEADER)?).ok()?)
    }

    /// The DMB named `token` with a ring of `capacity` bytes, of which the first ones, a power of two, are in `region`.
    pub fn part(region: Region, token: u64, capacity: u32) -> Option<Self> {
        let mapped = u32::try_from(region.len().checked_sub(HEADER)?).ok()?;
        let fits =
            mapped.is_power_of_two() && (SMALLEST..=capacity).contains(&mapped) && capacity.is_power_of_two();
        let words = region.base() as usize + Self::words_at(token);
        // SAFETY: the region is page-aligned and holds a header; mappings of DMBs outlive their users
        // (core retires them only when no thread looks any more).
        fits.then(|| unsafe { Self::at(Self::address_of(words, mapped), capacity) })
    }

    /// The [address](Self::address) of a DMB whose words are mapped at `words`, and so many bytes of its ring.
    pub const fn address_of(words: usize, mapped: u32) -> usize {
        words | (mapped / SMALLEST).trailing_zeros() as usize
    }

    /// Bytes of the ring that are mapped at `address`.
    #[inline]
    pub const fn mapped_at(address: usize) -> u32 {
        SMALLEST << (address & ORDER)
    }

    /// Length of the mapping that `address` is in.
    pub const fn len_at(address: usize) -> usize {
        HEADER + Self::mapped_at(address) as usize
    }

    /// The address of the same DMB in another mapping, which starts at `base` and has so many bytes of its ring.
    pub const fn moved(address: usize, base: usize, mapped: u32) -> usize {
        let offset = (address - Self::start_of(address)) & !ORDER;
        Self::address_of(base + offset, mapped)
    }

    /// The DMB at `address`, with a ring of `capacity` bytes. All that is mapped is in use.
    ///
    /// # Safety
    /// `address` is the [address](Self::address) of a DMB made from a region accepted by [`Dmb::part`] with this capacity, and the region
    /// stays mapped while the value is used.
    #[inline]
    pub unsafe fn at(address: usize, capacity: u32) -> Self {
        let mapped = Self::mapped_at(address);
        Self {
            // SAFETY: the caller's word for it.
            words: unsafe { &*((address & !ORDER) as *const Words) },
            ring: (Self::start_of(address) + HEADER) as *mut u8,
            capacity,
            mapped,
            window: mapped,
            until: 0,
        }
    }

    /// Owner, with nobody who uses it: makes the header of the memory at `region` what it was at first, whoever wrote there.
    /// The ring keeps what is in it, which the next sender is free to say again: its process wrote it.
    #[cfg(not(loom))]
    pub fn reset(region: Region) {
        // The slots of loans say nothing where none is counted.
        for at in (0..PAGE).step_by(size_of::<SharedU64>()) {
            // SAFETY: an atomic, valid for any bit pattern; the caller's mapping stays for as long as the loop.
            if let Some(word) = unsafe { region.at::<SharedU64>(at) } {
                // Relaxed: the peer learns of the DMB by the broker, after this.
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Where its words are, and how much of its ring is mapped there, to be found again by [`Self::at`]: in one word, so that who reads it
    /// without a lock finds what belongs together.
    pub fn address(&self) -> usize {
        Self::address_of(core::ptr::from_ref(self.words) as usize, self.mapped)
    }

    /// Start of the mapping that `address` is in.
    #[inline]
    pub const fn start_of(address: usize) -> usize {
        address & !(PAGE - 1)
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &'static Words {
        self.words
    }

    /// The same DMB, of whose ring `window` bytes are in use; `None` where that is no window of what is mapped.
    #[inline]
    pub fn with_window(self, window: u64) -> Option<Self> {
        let window = u32::try_from(window).ok()?;
        (window.is_power_of_two() && window <= self.mapped).then_some(Self { window, until: 0, ..self })
    }

    /// Sender: the same DMB, of whose ring `window` bytes are in use, a power of two, and before offset `until` the first ring. `None` where less is
    /// mapped.
    #[inline]
    pub fn with_own_window(self, window: u32, until: u64) -> Option<Self> {
        // One comparison for both: a lane that is closed has a window of 0.
        (window.wrapping_sub(1) < self.mapped).then_some(Self { window, until, ..self })
    }

    /// Receiver: the same DMB as the sender uses it now; `None` where it says what cannot be. To be asked after
    /// `prod`: then all that prod showed can be read so. `None` also while the sender moves.
    #[inline]
    pub fn as_sent(self) -> Option<Self> {
        self.with_window(self.words.window())
    }

    /// Receiver: the same DMB as the sender uses it, also while it moves, for who has read up to `cursor`.
    pub fn as_sent_behind(self, cursor: u64) -> Option<Self> {
        let window = Window(self.words.window());
        if !window.moves() {
            return self.with_window(window.0);
        }
        let ahead = window.ahead(cursor);
        let is_lawful = ahead <= u64::from(FIRST_WINDOW) && window.size() >= u64::from(MIN_WINDOW);
        let until = if ahead == 0 { 0 } else { cursor + ahead };
        self.with_window(window.size()).filter(|_| is_lawful).map(|dmb| Self { until, ..dmb })
    }

    /// Sender that has published up to `prod` and inherits the words of one that died: the same DMB as that one used it.
    pub fn as_left(self, prod: u64) -> Option<Self> {
        let window = Window(self.words.window());
        if !window.moves() {
            return self.with_window(window.0);
        }
        let behind = prod.wrapping_sub(window.0 >> 32) & Window::OFFSET;
        let is_lawful = behind <= window.size() && window.size() >= u64::from(MIN_WINDOW);
        let dmb = self.with_window(window.size()).filter(|_| is_lawful);
        dmb.map(|dmb| Self { until: prod.saturating_sub(behind), ..dmb })
    }

    /// Offset up to which unread bytes are in the first ring, while the window is behind the header.
    #[inline]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Whether the first ring is all that is in use.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.window == FIRST_WINDOW
    }

    /// How many bytes can be unread for who has read up to `cursor`.
    #[inline]
    pub fn most(&self, cursor: u64) -> u64 {
        self.window() + self.until.saturating_sub(cursor)
    }

    /// Sender: how many bytes fit behind `offset` when all before `cons` was read; `None` where that cannot be.
    #[inline]
    pub fn room(&self, cons: u64, offset: u64) -> Option<u64> {
        self.window().checked_sub(offset.wrapping_sub(cons.max(self.until)))
    }

    /// Sender: offset of the first byte that may be unread.
    pub fn oldest(&self, offset: u64) -> u64 {
        let least = if self.until == 0 { offset } else { offset.min(self.until) };
        let window = if self.until == 0 { self.window() } else { FIRST_WINDOW.into() };
        least.saturating_sub(window)
    }

    /// Sender: how many of the bytes before `offset` are unread. A receiver that lies about what it has read can say no more than the ring
    /// holds, and no less than nothing.
    pub fn unread(&self, offset: u64) -> u64 {
        offset - self.words.cons().offset().clamp(self.oldest(offset), offset)
    }

    /// Where the loans' slots are, in a page that is there only when something was lent.
    #[cfg(not(loom))]
    pub fn slots(&self) -> *const u8 {
        core::ptr::from_ref(self.words).cast::<u8>().wrapping_add(Loans::SLOTS_AT)
    }

    /// Bytes that the ring can grow to.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of it that are mapped here.
    #[inline]
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Whether all that is mapped is in use, and there could be more.
    #[inline]
    pub fn is_at_its_end(&self) -> bool {
        self.window == self.mapped && self.mapped < self.capacity
    }

    /// Bytes of the ring that are in use.
    #[inline]
    pub fn window(&self) -> u64 {
        u64::from(self.window)
    }

    /// Address of the byte at `offset`, and how many follow it there: not more than up to the window's end.
    #[inline]
    pub fn span(&self, offset: u64) -> (*mut u8, usize) {
        if offset < self.until {
            return self.first_span(offset);
        }
        let at = offset as usize & (self.window as usize - 1);
        let back = if self.window == FIRST_WINDOW { HEADER - FIRST_AT } else { 0 };
        // SAFETY: masked, so inside the window, which is inside the ring, or the first ring, so far before it.
        (unsafe { self.ring.sub(back).add(at) }, self.window as usize - at)
    }

    #[cold]
    fn first_span(&self, offset: u64) -> (*mut u8, usize) {
        let at = offset as usize & (FIRST_WINDOW as usize - 1);
        let left = usize::try_from(self.until - offset).unwrap_or(usize::MAX);
        // SAFETY: masked, so inside the first ring, which is so far before the ring.
        (unsafe { self.ring.sub(HEADER - FIRST_AT).add(at) }, left.min(FIRST_WINDOW as usize - at))
    }

    /// Sender: what it has just put into the ring at `offset`, as far as a short message goes; `None` next to the window's end.
    #[inline]
    pub fn last_put(&self, offset: u64) -> Option<short::Bytes> {
        let (at, room) = self.span(offset);
        // SAFETY: within the window. The receiver may write there: it would only change what it is told.
        (room >= short::MOST).then(|| unsafe { at.cast::<short::Bytes>().read_unaligned() })
    }

    /// The same DMB with twice the window; `None` when it fills the ring, or when what is unread, from `cons` up to
    /// `prod`, would lie elsewhere.
    pub fn doubled(self, cons: u64, prod: u64) -> Option<Self> {
        let more = self.window.checked_mul(2).filter(|_| self.may_double(cons, prod))?;
        self.with_own_window(more, self.until)
    }

    /// Sender that has published up to `prod`, what is unread being in the first ring from `cons` on: the same with the least window behind
    /// the header; `None` where that is not mapped.
    pub fn moved_on(self, cons: u64, prod: u64) -> Option<Self> {
        self.with_own_window(MIN_WINDOW, if cons == prod { 0 } else { prod })
    }

    /// The same when all that is in the first ring was read.
    pub fn settled(self) -> Self {
        Self { until: 0, ..self }
    }

    /// What the sender says of it.
    pub fn said(&self) -> Window {
        if self.until == 0 { Window(self.window()) } else { Window::moving(self.window(), self.until) }
    }

    /// Whether all that is unread would stay where it is in twice the window.
    #[inline]
    pub fn may_double(&self, cons: u64, prod: u64) -> bool {
        let window = self.window();
        let cons = cons.max(self.until);
        cons == prod || (cons & window == 0 && (prod - 1) / window == cons / window)
    }

    /// Offset of the next point, at `offset` or behind, at which the window may be doubled whatever is unread.
    pub fn growth_point(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.window()) | self.window()
    }

    /// Sender, with nothing unread: gives the memory of the ring behind the first `window` bytes back to the system; all of it where that is the first
    /// ring's.
    pub fn release_behind(&self, window: u64) {
        let (at, end) =
            (if window <= FIRST_WINDOW.into() { 0 } else { window as usize }, self.mapped as usize);
        if at < end {
            // SAFETY: within the mapping; nothing there is unread, and only the sender writes, which is the caller.
            // Failure (a seal, a filter) leaves the memory where it is.
            unsafe {
                shunpike_arch::syscall(
                    libc::SYS_madvise,
                    self.ring.add(at).expose_provenance(),
                    end - at,
                    libc::MADV_REMOVE as usize,
                    0,
                    0,
                    0,
                )
            };
        }
    }

    /// Copies `len` bytes at `from` into the ring at `offset`; the caller owns that stretch of the ring.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; `len` is at most the window.
    #[inline]
    pub unsafe fn fill(&self, offset: u64, from: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let (to, room) = self.span(offset + done as u64);
            let n = room.min(len - done);
            // SAFETY: `n` bytes fit before the window's end; all of them are within `len`.
            unsafe { core::ptr::copy_nonoverlapping(from.add(done), to, n) };
            done += n;
        }
    }

    /// Copies `len` bytes at `offset` of another ring into this one, where the caller owns that stretch.
    pub fn copy_from(&self, other: &Dmb, offset: u64, len: usize) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (from, room) = other.span(at);
            let n = room.min(len - done);
            // SAFETY: `n` bytes stand there before the other window's end.
            unsafe { self.fill(at, from, n) };
            done += n;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
