//! Several threads that send and several that receive on one connection, at the same time.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Said, errno, hear_no_signals, mixed, send_all};

/// Most time that all of it takes.
const MOST: Duration = Duration::from_secs(5);

/// Sends `rounds` pieces of `size` bytes by each of `threads` threads, while as many receive what the other side sends: how much came, and
/// which bytes, in whatever order.
pub fn torrent(fd: RawFd, threads: u8, rounds: u8, size: usize, serial: u64) -> Said {
    let all = usize::from(threads) * usize::from(rounds) * size;
    let (received, sum, error) = (AtomicUsize::new(0), AtomicI64::new(0), AtomicI64::new(0));
    let until = Instant::now() + MOST;
    let send = |thread: u8| {
        hear_no_signals();
        for round in 0..rounds {
            let first = serial.wrapping_add(u64::from(thread) << 8).wrapping_add(u64::from(round));
            let piece: Vec<u8> = (0..size as u64)
                .map(|p| (p.wrapping_mul(0x9e37_79b9).wrapping_add(first) >> 3) as u8)
                .collect();
            if !send_all(fd, &piece) {
                error.store(errno().into(), Ordering::Relaxed);
                return;
            }
        }
    };
    let receive = || {
        hear_no_signals();
        let mut some = [0u8; 4096];
        while received.load(Ordering::Relaxed) < all && Instant::now() < until {
            let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, and the array, of ours. Another thread may have been quicker.
            let n = unsafe {
                libc::poll(&raw mut one, 1, 50);
                libc::recv(fd, some.as_mut_ptr().cast(), some.len(), libc::MSG_DONTWAIT)
            };
            match n {
                0 => return,
                n if n > 0 => {
                    sum.fetch_add(mixed(&some[..n as usize]), Ordering::Relaxed);
                    received.fetch_add(n as usize, Ordering::Relaxed);
                }
                _ if errno() == libc::EAGAIN => {}
                _ => error.store(errno().into(), Ordering::Relaxed),
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let send = &send;
            scope.spawn(move || send(thread));
            scope.spawn(receive);
        }
    });
    let more = vec![sum.into_inner(), error.into_inner()];
    Said { more, ..Said::of(received.into_inner() as i64) }
}
