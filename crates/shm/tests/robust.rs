//! Robust locks between real processes: what a killed holder leaves behind, whatever it held and in whatever order.
#![cfg(not(any(loom, miri)))]

use std::cell::UnsafeCell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use shunpike_shm::lock::{self, Calls, Guard, Libc, RobustLock, Section, after_fork_in_child};
use shunpike_shm::region::{self, Region};

/// These tests have no signal handlers.
struct NoHandlers;

// SAFETY: there are none.
unsafe impl Section for NoHandlers {}

const IS_MUSL: bool = cfg!(target_env = "musl");

/// The libc of this program.
static OF_TEST: Libc = Libc {
    is_musl: || IS_MUSL,
    calls: || {
        (!IS_MUSL).then_some(Calls {
            destroy: libc::pthread_mutex_destroy,
            lock: libc::pthread_mutex_lock,
            timedlock: libc::pthread_mutex_timedlock,
            trylock: libc::pthread_mutex_trylock,
            unlock: libc::pthread_mutex_unlock,
            consistent: libc::pthread_mutex_consistent,
        })
    },
    show_list: || {
        let mutex = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
        make_robust(&mutex);
        // SAFETY: made just now, and nobody else's.
        unsafe {
            libc::pthread_mutex_lock(mutex.get());
            libc::pthread_mutex_unlock(mutex.get());
        }
    },
};

/// What the processes of a test share.
#[repr(C)]
struct Shared {
    locks: [RobustLock; 2],
    /// A program's own, made by libc.
    mutexes: [UnsafeCell<libc::pthread_mutex_t>; 2],
    step: AtomicU32,
    inside: AtomicU32,
    count: AtomicU64,
}

// SAFETY: mutexes are made for that.
unsafe impl Sync for Shared {}

fn shared() -> &'static Shared {
    let fd = region::create("locks", 4096).expect("memfd");
    let region = Region::map(fd.as_fd(), 4096).expect("maps");
    // SAFETY: page-aligned zeroes, all of which are atomics or locks that are made now; the mapping stays.
    let shared = unsafe { &*region.base().cast::<Shared>() };
    lock::start(&OF_TEST);
    shared.locks.iter().for_each(RobustLock::init);
    for mutex in &shared.mutexes {
        make_robust(mutex);
    }
    shared
}

fn make_robust(mutex: &UnsafeCell<libc::pthread_mutex_t>) {
    // SAFETY: plain pthread initialisation; attr lives until the mutex is made.
    unsafe {
        let mut attr = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attr);
        libc::pthread_mutexattr_setpshared(&raw mut attr, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&raw mut attr, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex.get(), &raw const attr);
    }
}

/// Runs `child` in a forked process, which ends there.
fn fork(child: impl FnOnce()) -> Pid {
    // SAFETY: the child only takes locks and ends.
    match unsafe { libc::fork() } {
        0 => {
            after_fork_in_child();
            child();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        pid => Pid::from_raw(pid).expect("fork"),
    }
}

fn killed() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!()
}

/// Whether the lock was left by somebody who died inside, which is said until it is repaired.
fn was_left(guard: &Guard<'_, NoHandlers>) -> bool {
    let inherited = guard.inherited();
    guard.repaired();
    inherited
}

fn reap(pid: Pid) {
    waitpid(Some(pid), WaitOptions::empty()).expect("a child");
}

/// Which of the two locks a child that did `what` left inherited.
fn left_by(what: fn(&'static [RobustLock; 2])) -> [bool; 2] {
    let shared = shared();
    reap(fork(|| {
        what(&shared.locks);
        killed()
    }));
    let again = [0, 1].map(|at| shared.locks[at].lock(NoHandlers).inherited());
    let left = [0, 1].map(|at| was_left(&shared.locks[at].lock(NoHandlers)));
    assert_eq!(again, left, "not repaired yet");
    assert!(
        shared.locks.iter().all(|lock| !lock.try_lock(NoHandlers).expect("free").inherited()),
        "repaired"
    );
    left
}

#[test]
fn what_a_killed_process_held_is_inherited_and_nothing_else() {
    assert_eq!(left_by(|_| ()), [false, false]);
    assert_eq!(left_by(|[a, _]| core::mem::forget(a.lock(NoHandlers))), [true, false]);
    assert_eq!(left_by(|[a, b]| core::mem::forget((a.lock(NoHandlers), b.lock(NoHandlers)))), [true, true]);
    assert_eq!(
        left_by(|[a, b]| core::mem::forget((b.lock(NoHandlers), a.try_lock(NoHandlers)))),
        [true, true]
    );
    // One within the other, and the other way round.
    assert_eq!(
        left_by(|[a, b]| {
            let outer = a.lock(NoHandlers);
            drop(b.lock(NoHandlers));
            core::mem::forget(outer);
        }),
        [true, false]
    );
    assert_eq!(
        left_by(|[a, b]| {
            let outer = a.lock(NoHandlers);
            let inner = b.lock(NoHandlers);
            drop(outer);
            core::mem::forget(inner);
        }),
        [false, true]
    );
    assert_eq!(
        left_by(|[a, b]| {
            let outer = a.lock(NoHandlers);
            let inner = b.lock(NoHandlers);
            drop(outer);
            drop(inner);
            core::mem::forget((b.lock(NoHandlers), a.lock(NoHandlers)));
        }),
        [true, true]
    );
}

#[test]
fn the_first_lock_of_a_thread_is_robust_too() {
    let shared = shared();
    reap(fork(|| {
        core::mem::forget((shared.locks[0].lock(NoHandlers), shared.locks[1].lock(NoHandlers)));
        killed()
    }));
    assert!(shared.locks.iter().all(|lock| lock.lock(NoHandlers).inherited()));
}

/// One list of the kernel's has both.
#[test]
fn beside_mutexes_of_the_program() {
    let lock = |mutex: &UnsafeCell<libc::pthread_mutex_t>| {
        // SAFETY: made in `shared`.
        unsafe { libc::pthread_mutex_lock(mutex.get()) }
    };
    let unlock = |mutex: &UnsafeCell<libc::pthread_mutex_t>| {
        // SAFETY: as above; held by the caller.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(mutex.get()) }, 0);
    };
    for is_first in [true, false] {
        let shared = shared();
        let ([a, b], [m, n]) = (&shared.locks, &shared.mutexes);
        reap(fork(|| {
            if !is_first {
                drop(a.lock(NoHandlers));
            }
            // The program's on the list before ours, and ours before the program's; each is taken away from between others.
            lock(m);
            let (first, second) = (a.lock(NoHandlers), b.lock(NoHandlers));
            lock(n);
            drop(first);
            unlock(m);
            let first = a.lock(NoHandlers);
            drop(second);
            core::mem::forget((first, b.lock(NoHandlers)));
            killed()
        }));
        assert_eq!([m, n].map(lock), [0, libc::EOWNERDEAD]);
        let left = [a, b].map(|lock| lock.try_lock(NoHandlers).map(|lock| was_left(&lock)));
        assert_eq!(left, [Some(true); 2], "the list is known {}", if is_first { "late" } else { "early" });
    }
}

/// What libc has before its list's head is none of ours.
#[test]
fn locks_leave_a_threads_keys_alone() {
    let [a, b] = &shared().locks;
    let (mut key, value) = (0, core::ptr::without_provenance(8));
    // SAFETY: a key of our own, without a destructor.
    unsafe {
        assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
        assert_eq!(libc::pthread_setspecific(key, value), 0);
    }
    let first = a.lock(NoHandlers);
    drop(b.lock(NoHandlers));
    drop(first);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_getspecific(key) }.cast_const(), value);
}

#[test]
fn what_is_taken_within_a_threads_first_lock_is_robust_when_that_is_released() {
    let shared = shared();
    reap(fork(|| {
        let first = shared.locks[0].lock(NoHandlers);
        core::mem::forget(shared.locks[1].lock(NoHandlers));
        drop(first);
        killed()
    }));
    let left = [0, 1].map(|at| shared.locks[at].try_lock(NoHandlers).map(|lock| lock.inherited()));
    assert_eq!(left, [Some(false), Some(true)]);
}

/// Killed between release and wake, after which another takes the lock: the kernel wakes nobody.
#[test]
fn who_sleeps_while_the_wake_is_lost_comes_to_it() {
    for knows_its_list in [false, true] {
        let shared = shared();
        let words = core::ptr::from_ref(&shared.locks[0]).cast::<AtomicU32>();
        // SAFETY: the mutex begins with its words, which are atomic.
        let word = unsafe { &*words.add(usize::from(IS_MUSL)) };
        let releaser = fork(|| {
            drop(shared.locks[1].lock(NoHandlers));
            core::mem::forget(shared.locks[0].lock(NoHandlers));
            shared.step.store(1, Ordering::Release);
            while word.load(Ordering::Relaxed) & libc::FUTEX_WAITERS == 0 {
                std::hint::spin_loop();
            }
            // Time to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            word.store(0, Ordering::Release);
            shared.step.store(2, Ordering::Release);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let reach = |step| {
            while shared.step.load(Ordering::Acquire) < step {
                std::thread::yield_now();
            }
        };
        reach(1);
        let sleeper = std::thread::spawn(move || {
            if knows_its_list {
                drop(shared.locks[1].lock(NoHandlers));
            }
            assert!(!shared.locks[0].lock(NoHandlers).inherited());
        });
        reach(2);
        let other = shared.locks[0].lock(NoHandlers);
        kill_process(releaser, Signal::KILL).expect("kill");
        reap(releaser);
        drop(other);
        let patience = Instant::now() + Duration::from_secs(20);
        while !sleeper.is_finished() {
            assert!(Instant::now() < patience, "it sleeps on");
            std::thread::yield_now();
        }
        sleeper.join().expect("not inherited");
    }
}

#[test]
fn who_waits_for_a_killed_holder_is_woken() {
    let shared = shared();
    let holder = fork(|| {
        drop(shared.locks[0].lock(NoHandlers));
        let _held = shared.locks[0].lock(NoHandlers);
        shared.step.store(1, Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    });
    while shared.step.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert!(shared.locks[0].try_lock(NoHandlers).is_none());
    let waiters = [(); 3].map(|()| {
        std::thread::spawn(|| {
            drop(shared.locks[1].lock(NoHandlers));
            let guard = shared.locks[0].lock(NoHandlers);
            assert_eq!(shared.inside.fetch_add(1, Ordering::Relaxed), 0);
            shared.inside.fetch_sub(1, Ordering::Relaxed);
            was_left(&guard)
        })
    });
    std::thread::sleep(Duration::from_millis(50));
    kill_process(holder, Signal::KILL).expect("kill");
    let inherited: Vec<_> = waiters.into_iter().map(|one| one.join().expect("woken")).collect();
    assert_eq!(inherited.iter().filter(|&&one| one).count(), 1);
    reap(holder);
}

/// Processes with two threads each, that take the locks in turn, alone and together, until they are killed.
#[test]
fn a_storm_of_holders_that_are_killed_leaves_one_at_a_time() {
    let shared = shared();
    let work = move |second: bool| {
        let mut round = 0u64;
        loop {
            round += 1;
            let guard = shared.locks[0].lock(NoHandlers);
            if was_left(&guard) {
                shared.inside.store(0, Ordering::Relaxed);
            }
            if shared.inside.fetch_add(1, Ordering::Relaxed) != 0 {
                // Told by a step that never comes otherwise.
                shared.step.store(99, Ordering::Relaxed);
            }
            let both = (second && round.is_multiple_of(3)).then(|| shared.locks[1].lock(NoHandlers));
            shared.count.fetch_add(1, Ordering::Relaxed);
            shared.inside.fetch_sub(1, Ordering::Relaxed);
            if round.is_multiple_of(2) {
                drop(guard);
                drop(both);
            } else {
                drop(both);
                drop(guard);
            }
        }
    };
    let start = || {
        fork(|| {
            std::thread::spawn(move || work(true));
            work(false)
        })
    };
    let mut processes = [(); 3].map(|()| start());
    let end = Instant::now() + Duration::from_secs(2);
    let mut kills = 0;
    while Instant::now() < end {
        let before = shared.count.load(Ordering::Relaxed);
        kill_process(processes[kills % 3], Signal::KILL).expect("kill");
        reap(processes[kills % 3]);
        processes[kills % 3] = start();
        kills += 1;
        let patience = Instant::now() + Duration::from_secs(20);
        while shared.count.load(Ordering::Relaxed) < before + 100 {
            assert!(Instant::now() < patience, "all wait after {kills} kills");
            std::thread::yield_now();
        }
    }
    for one in processes {
        kill_process(one, Signal::KILL).expect("kill");
        reap(one);
    }
    assert_eq!(shared.step.load(Ordering::Relaxed), 0, "two were inside at once");
    assert!(kills > 20, "{kills}");
    assert!(shared.locks.iter().all(|lock| lock.try_lock(NoHandlers).is_some()));
}
