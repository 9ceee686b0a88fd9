//! Doorbells, and who is still there to ring them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, fence};
use loom::thread::{self, Thread};

/// A sleeper's own epoll instance with the doorbell in it, edge-triggered: a ring while awake is kept.
///
/// Not loom's `Notify`: nobody wakes here without a cause, and who sleeps for ever is a failed assertion.
pub struct Bell {
    rung: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Bell {
    pub fn new() -> Self {
        Self { rung: AtomicBool::new(false), sleeper: Mutex::new(None) }
    }

    pub fn ring(&self, crew: &Crew) {
        // No step of another thread comes between a loom operation and what follows it.
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.lock().unwrap().take()
        {
            crew.awake.fetch_add(1, Ordering::Relaxed);
            sleeper.unpark();
        }
    }

    /// Sleeps until it rings. Panics when nobody is left who could ring.
    pub fn wait(&self, crew: &Crew) {
        if self.rung.swap(false, Ordering::AcqRel) {
            return;
        }
        *self.sleeper.lock().unwrap() = Some(thread::current());
        crew.leave();
        // loom's park may return for the sake of another unpark.
        while !self.rung.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}

/// A futex as the kernel has it: who waits is counted first, and compares then; a wake after that finds it.
pub struct Futex {
    waiters: Mutex<Vec<(Thread, bool)>>,
}

impl Futex {
    pub fn new() -> Self {
        Self { waiters: Mutex::new(Vec::new()) }
    }

    /// FUTEX_WAIT, if what is expected `stands` there.
    pub fn wait(&self, crew: &Crew, stands: impl FnOnce() -> bool) {
        let me = thread::current();
        let id = me.id();
        self.waiters.lock().unwrap().push((me, false));
        fence(Ordering::SeqCst);
        let lies_down = stands();
        let mut waiters = self.waiters.lock().unwrap();
        let Some(at) = waiters.iter().position(|(thread, _)| thread.id() == id) else { return };
        if !lies_down {
            waiters.remove(at);
            return;
        }
        waiters[at].1 = true;
        drop(waiters);
        crew.leave();
        // loom's park may return for the sake of another unpark.
        while self.waiters.lock().unwrap().iter().any(|(thread, _)| thread.id() == id) {
            thread::park();
        }
    }

    /// FUTEX_WAKE: all of them.
    pub fn wake(&self, crew: &Crew) {
        fence(Ordering::SeqCst);
        for (thread, lies) in self.waiters.lock().unwrap().drain(..) {
            if lies {
                crew.awake.fetch_add(1, Ordering::Relaxed);
                thread.unpark();
            }
        }
    }
}

/// Threads of a model that are awake, or rung for. std's atomics and locks here and in [`Bell`]: what the model
/// is about must not be ordered by them.
pub struct Crew {
    awake: AtomicUsize,
    done: AtomicUsize,
    threads: usize,
}

impl Crew {
    pub fn new(threads: usize) -> Self {
        Self { awake: AtomicUsize::new(threads), done: AtomicUsize::new(0), threads }
    }

    /// The calling thread has nothing more to do.
    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.leave();
    }

    fn leave(&self) {
        let others = self.awake.fetch_sub(1, Ordering::Relaxed) - 1;
        let done = self.done.load(Ordering::Relaxed);
        assert!(others > 0 || done == self.threads, "left asleep");
    }
}

/// Runs `each` in threads of their own, and the first of them in this one, on what they share.
pub fn together<T: 'static>(shared: &Arc<T>, crew: fn(&T) -> &Crew, each: Vec<Box<dyn FnOnce(&T)>>) {
    let mut each = each.into_iter();
    let here = each.next();
    let others: Vec<_> = each
        .map(|run| {
            let shared = Arc::clone(shared);
            thread::spawn(move || {
                run(&shared);
                crew(&shared).done();
            })
        })
        .collect();
    if let Some(run) = here {
        run(shared);
        crew(shared).done();
    }
    others.into_iter().for_each(|other| other.join().unwrap());
}
