//! A ring in shared memory between two processes, with nothing around it: copy in, publish, copy out, consume. What
//! a stream over a lane can at best be.

use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::hint::spin_loop;
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Ring sizes that are measured, bytes.
pub const SIZES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// A copy, bytes: as a lane's chunk.
const CHUNK: usize = 16 << 10;
/// What a program passes in one call, bytes.
const BUFFER: usize = 64 << 10;
/// Before the ring: the cursors.
const HEADER: usize = 4096;
/// Bytes of the memory beside the ring.
pub const MEMORY: u64 = HEADER as u64;

/// The two cursors, each on a cache line (and its neighbour) of its own.
#[repr(C, align(128))]
struct Line(AtomicU64);

#[repr(C)]
struct Cursors {
    produced: Line,
    consumed: Line,
    /// 1 once the writer has ended.
    ended: Line,
}

struct Ring {
    base: *mut u8,
    size: u64,
}

impl Ring {
    fn map(memory: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(memory)?;
        let len = file.metadata()?.len();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it is never unmapped.
        let base = unsafe { mmap(ptr::null_mut(), len as usize, protection, MapFlags::SHARED, &file, 0)? };
        let ring = Self { base: base.cast(), size: len - MEMORY };
        assert!(ring.size.is_multiple_of(CHUNK as u64), "a ring of whole chunks");
        Ok(ring)
    }

    fn cursors(&self) -> &Cursors {
        // SAFETY: the mapping begins with the header, is page-aligned and lives as long as the process; all
        // of it is atomics.
        unsafe { &*self.base.cast::<Cursors>() }
    }

    fn chunk(&self, at: u64) -> *mut u8 {
        // SAFETY: `at % size` is at most size - CHUNK, as both are multiples of CHUNK: inside the mapping.
        unsafe { self.base.add(HEADER + (at % self.size) as usize) }
    }
}

pub fn write(memory: &Path, seconds: f64) -> io::Result<()> {
    let ring = Ring::map(memory)?;
    let cursors = ring.cursors();
    let block: Vec<u8> = (0..BUFFER).map(|i| i as u8).collect();
    let (mut at, mut free, start) = (0, ring.size, Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        for part in block.chunks_exact(CHUNK) {
            while free < CHUNK as u64 {
                // Pairs with the reader's Release: it has copied out what we overwrite.
                free = cursors.consumed.0.load(Ordering::Acquire) + ring.size - at;
                spin_loop();
            }
            // SAFETY: a chunk inside the mapping, which the reader does not look at before it is published.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), ring.chunk(at), CHUNK) };
            at += CHUNK as u64;
            free -= CHUNK as u64;
            // Pairs with the reader's Acquire.
            cursors.produced.0.store(at, Ordering::Release);
        }
    }
    // Pairs with the reader's Acquire of `ended`: it sees the last position too.
    cursors.ended.0.store(1, Ordering::Release);
    Ok(())
}

pub fn read(memory: &Path) -> io::Result<Value> {
    let ring = Ring::map(memory)?;
    let cursors = ring.cursors();
    let mut block = vec![0u8; BUFFER];
    let mut part = 0;
    let (mut at, mut there, mut start) = (0, 0, None);
    'all: loop {
        while there == at {
            // Pairs with the writer's Release of `ended`, before the last look at `produced`.
            let ended = cursors.ended.0.load(Ordering::Acquire) != 0;
            // Pairs with the writer's Release.
            there = cursors.produced.0.load(Ordering::Acquire);
            if ended && there == at {
                break 'all;
            }
            spin_loop();
        }
        let start = start.get_or_insert_with(Instant::now);
        while at < there {
            let to = &mut block[part..part + CHUNK];
            // SAFETY: a chunk inside the mapping, published by the writer, which leaves it alone until we consume.
            unsafe { ptr::copy_nonoverlapping(ring.chunk(at), to.as_mut_ptr(), CHUNK) };
            at += CHUNK as u64;
            part = (part + CHUNK) % BUFFER;
            // Pairs with the writer's Acquire.
            cursors.consumed.0.store(at, Ordering::Release);
        }
        std::hint::black_box(&block);
        let _ = start;
    }
    let seconds = start.map_or(0.0, |start| start.elapsed().as_secs_f64());
    Ok(json!({ "bytes": at, "seconds": seconds }))
}
