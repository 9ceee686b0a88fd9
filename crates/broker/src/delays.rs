//! Who keeps the broker's loop waiting.
//!
//! Two things that the loop does for a client take as long as the client likes. Each message, either way, and the session's end wake all who
//! watch its socket: a client may have it in a million places of epoll sets. And a look at its arena waits for the page's lock, which the
//! kernel holds while it walks all that have the page mapped. Nobody can know before, so that the first time costs what it costs; but it is
//! counted, and who has taken more than a share is not served for a while.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// CPU time that no honest client's message takes.
const DEAR: Duration = Duration::from_micros(200);
/// A wait that is not for the CPU.
const LONG: Duration = Duration::from_millis(20);

/// What the thread has had: CPU time, and how often it has waited.
#[derive(Copy, Clone)]
struct Usage {
    cpu: Duration,
    waits: libc::c_long,
}

impl Usage {
    fn now() -> Self {
        let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: room for the one structure that the kernel writes.
        let raw = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, raw.as_mut_ptr());
            raw.assume_init()
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec.unsigned_abs())
                + Duration::from_micros(time.tv_usec.unsigned_abs())
        };
        Self { cpu: time(raw.ru_utime) + time(raw.ru_stime), waits: raw.ru_nvcsw }
    }
}

thread_local! {
    static KEPT: RefCell<Vec<(u32, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// Makes `call`, which sends or takes a message of `user`'s. Where it takes much CPU time, or waits for long, that is noted; what others had
/// of the CPU meanwhile is not.
pub fn message<T>(user: u32, call: impl FnOnce() -> T) -> T {
    let _watch = Watch::begin(user, DEAR);
    call()
}

/// The same for looks at memory of `user`'s, as long as this lives. They may take their CPU time.
pub fn look(user: u32) -> Watch {
    Watch::begin(user, LONG)
}

/// What is done for a user meanwhile is watched.
pub struct Watch {
    user: u32,
    /// CPU time from which on it is noted.
    dear: Duration,
    before: Usage,
    began: Instant,
}

impl Watch {
    fn begin(user: u32, dear: Duration) -> Self {
        Self { user, dear, before: Usage::now(), began: Instant::now() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        if took < self.dear {
            return;
        }
        let now = Usage::now();
        let cpu = now.cpu.saturating_sub(self.before.cpu);
        let has_waited = took >= LONG && now.waits > self.before.waits;
        if cpu >= self.dear || has_waited {
            KEPT.with_borrow_mut(|kept| kept.push((self.user, if has_waited { took } else { cpu })));
        }
    }
}

/// Users that have kept the loop since this was last asked, and for how long.
pub fn take() -> Vec<(u32, Duration)> {
    KEPT.with_borrow_mut(std::mem::take)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computes(time: Duration) {
        let before = Usage::now();
        while Usage::now().cpu - before.cpu < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn who_has_the_loop_compute_or_wait_is_noted() {
        message(1, || ());
        let looks = |user, call: &dyn Fn()| {
            let _watch = look(user);
            call();
        };
        looks(1, &|| computes(2 * DEAR));
        assert!(take().is_empty(), "that is no more than it may");
        message(2, || computes(2 * DEAR));
        looks(3, &|| computes(LONG));
        looks(4, &|| std::thread::sleep(2 * LONG));
        let kept = take();
        assert_eq!(kept.iter().map(|(user, _)| *user).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(kept[0].1 >= 2 * DEAR && kept[1].1 >= LONG && kept[2].1 >= 2 * LONG, "{kept:?}");
        assert!(take().is_empty());
    }
}
