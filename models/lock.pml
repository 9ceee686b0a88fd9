/* lock.pml - robust locks whose holders name them to the kernel by `list_op_pending` alone (crates/shm/src/lock.rs).
 *
 * A lock: a word (owner, WAITERS, DIED) and an entry (next, prev).  A thread shows the kernel its list (first) and pending.
 * Taking: name in pending; compare-and-swap.  Releasing: word = 0; wake one if WAITERS was set; pending = 0.  Before a
 * second lock is named the first goes on the list; who releases a lock of the list puts the one in pending there first.  A
 * thread may take its first lock by glibc's own calls (the code does not any more; pending, compare-and-swap, enqueue, pending = 0), which tell it where
 * its list is, and releases it by ours; thread STRANGE goes on by glibc's.  Threads are killed at any step.  The kernel walks the
 * dead one's list, then pending: words whose owner is the dead get DIED, and one sleeper is woken if they had WAITERS; a
 * word of pending without owner wakes one, too.
 *
 * Checked: one holder at a time; who takes over from one who died inside is told, and nobody else is; the kernel finds a
 * sound list, and marks only what the dead one held, all of it; nobody sleeps for ever.  The kernel does not wake for
 * one who died with a wake-up on its hands (released and not woken yet, or woken and not come to it) where another has taken
 * the lock meanwhile, and that one saw no WAITERS: sleeps have a bound, which the model lets end in that case alone.
 *
 * Stores that nobody else can see the order of are one step: prev is read by its holder only.  A load and the compare-and-swap
 * after it are one step, as a change in between means another round.  Another's name in pending (a handler that came in
 * the middle of the program's own robust mutex) is not modelled.
 *
 * run:  spin -a lock.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m1000000 -w24
 * NT threads; NL locks, 2 of them also in one another, released in both orders; R rounds; D deaths at most; KNOWN: no
 * first locks.  With two threads NOLINK and NAME_EARLY need KNOWN; NOBOUND and NOMARK need a third thread (-DNT=3 -DNL=1).
 * Must FAIL:
 *   NOBOUND          sleeps have no bound
 *   NOLINK           a second lock is named without the first going on the list
 *   NAME_EARLY       it is named before the first is on the list
 *   LINK_HALF        an entry goes on the list before its next is set
 *   NOLINK_LATER     the lock in pending is forgotten when one of the list is released
 *   FIRST_BY_GLIBC   the first lock is released by glibc's call, which ends with pending = 0, though another is there
 *   NOPENDING_UNLOCK pending is cleared before the wake
 *   NOPENDING_LIST   a lock of the list is taken off without being named
 *   UNLINK_LATE      the word is released before the entry leaves the list
 *   NEXT_EARLY       next is cleared before the entry has left the list
 *   NAME_LATE        a lock is named when it is taken
 *   NOMARK           who slept takes the lock without WAITERS
 *   WAKE_NONE        nobody is woken
 * Also right, must pass:
 *   STALE_NEXT       who takes over from a dead one leaves its next in place (releasing puts the lock on the list and takes it off)
 *   OLD_KERNEL       wakes for a pending word only if it is all 0, not if it is DIED without an owner
 */
#ifndef NT
#define NT 2
#endif
#ifndef NL
#define NL 2
#endif
#ifndef R
#define R 1
#endif
#ifndef D
#define D 1
#endif
#ifndef STRANGE
#define STRANGE (NT - 1)
#endif
#define NAME(l) ((l) + 1)           /* of a lock's entry; 0 none */
#define HEAD (NL + 1 + p)           /* of the thread's own list */

byte owner[NL];                     /* 0, or p + 1 */
bool waiters[NL], died[NL];
byte next[NL], prev[NL];
byte first[NT], pending[NT];
byte held[NT];                      /* what pending names for us */
byte asleep[NT];                    /* in FUTEX_WAIT, on this name */
bool kill[NT], dead[NT];
byte ended;

/* For the checks only. */
byte holder[NL];                    /* from taking to releasing, also when dead */
bool owes[NT];                      /* has a wake-up on its hands */
bool owed[NL];                      /* the kernel could not pass it on */

inline wake(l) {
  atomic {
    if
    :: asleep[0] == NAME(l) -> asleep[0] = 0; owes[0] = 1
    :: asleep[1] == NAME(l) -> asleep[1] = 0; owes[1] = 1
#if NT > 2
    :: asleep[2] == NAME(l) -> asleep[2] = 0; owes[2] = 1
#endif
    :: else
    fi
  }
}

/* The step of the compare-and-swap; the caller has seen that there is no owner. */
inline swapped(l, mark) {
  assert(died[l] == (holder[l] != 0));                     /* told, or not */
  if :: holder[l] -> assert(dead[holder[l] - 1]) :: else fi;
  inherited = died[l];
  owner[l] = p + 1; holder[l] = p + 1; owes[p] = 0;
  died[l] = 0;
#ifndef NOMARK
  if :: mark -> waiters[l] = 1 :: else fi;
#endif
  mark = 0
}

inline contend(l) {
  do
  :: d_step { owner[l] == 0 -> swapped(l, mark) }; break
  :: d_step { owner[l] != 0 -> waiters[l] = 1; owes[p] = 0 };
     if
     :: d_step { owner[l] != 0 && waiters[l] -> asleep[p] = NAME(l) };
        if
        :: asleep[p] == 0
#ifndef NOBOUND
        :: d_step { asleep[p] && owed[l] -> asleep[p] = 0 }
#endif
        fi
     :: else
     fi;
     mark = 1
  od
}

inline link(n) {
#ifdef LINK_HALF
  first[p] = n;
  d_step { next[n - 1] = HEAD; prev[n - 1] = HEAD }        /* of an empty list, at that */
#else
  d_step {
    next[n - 1] = first[p]; prev[n - 1] = HEAD;
    if :: first[p] <= NL -> prev[first[p] - 1] = n :: else fi
  };
  first[p] = n
#endif
}

inline take_off(l) {
#ifdef NEXT_EARLY
  n = next[l]; next[l] = 0;
#else
  n = next[l];
#endif
  d_step {
    assert(prev[l] <= NL || prev[l] == HEAD);              /* no store into another's */
    assert(n != 0 && (n <= NL || n == HEAD));
    if :: prev[l] <= NL -> next[prev[l] - 1] = n :: else -> first[p] = n fi;
    if :: n <= NL -> prev[n - 1] = prev[l] :: else fi;
    n = 0
  };
  d_step { next[l] = 0; prev[l] = 0 }
}

inline announce(l) {
#ifndef NOLINK
  if
  :: pending[p] != 0 && pending[p] == held[p] ->
#ifdef NAME_EARLY
     pending[p] = NAME(l);
#endif
     link(held[p])
  :: else
  fi;
#endif
#ifdef NAME_LATE
  held[p] = NAME(l)
#else
  d_step { pending[p] = NAME(l); held[p] = NAME(l) }
#endif
}

/* After the lock was taken. */
inline taken(l) {
#ifdef NAME_LATE
  pending[p] = NAME(l);
#endif
#ifdef STALE_NEXT
  inherited = 0
#else
  if :: inherited -> d_step { next[l] = 0; inherited = 0 } :: else fi
#endif
}

inline release(l) {
  d_step { owes[p] = waiters[l]; owner[l] = 0; waiters[l] = 0; died[l] = 0; holder[l] = 0 };
#ifdef NOPENDING_UNLOCK
  pending[p] = 0;
#endif
#ifndef WAKE_NONE
  if :: owes[p] -> atomic { wake(l); owes[p] = 0 } :: else fi
#endif
}

inline unlock_by_glibc(l) {
  pending[p] = NAME(l);
  take_off(l);
  release(l);
  pending[p] = 0
}

inline lock(l) {
  if
  :: known -> announce(l); contend(l); taken(l)
  :: else ->
     pending[p] = NAME(l);
     contend(l);
     inherited = 0;
     link(NAME(l));
     pending[p] = 0;
#ifdef FIRST_BY_GLIBC
     by_glibc = NAME(l);
#endif
     known = p != STRANGE
  fi
}

/* got: whether. */
inline try_lock(l) {
  if
  :: known ->
     announce(l);
     if
     :: d_step { owner[l] == 0 -> swapped(l, mark); got = 1 }; taken(l)
     :: else -> d_step { pending[p] = 0; held[p] = 0 }
     fi
  :: else ->
     pending[p] = NAME(l);
     if
     :: d_step { owner[l] == 0 -> swapped(l, mark); got = 1 };
        inherited = 0;
        link(NAME(l));
        known = p != STRANGE
     :: else
     fi;
     pending[p] = 0
  fi
}

inline unlock(l) {
  if
  :: p == STRANGE || by_glibc == NAME(l) -> by_glibc = 0; unlock_by_glibc(l)
  :: else ->
#ifdef UNLINK_LATE
     if :: next[l] != 0 -> pending[p] = NAME(l) :: else fi;
     release(l);
     if :: next[l] != 0 -> take_off(l) :: else fi;
#else
     if
     :: next[l] != 0 ->
#ifndef NOLINK_LATER
        if :: held[p] != 0 -> link(held[p]) :: else fi;
#endif
#ifndef NOPENDING_LIST
        pending[p] = NAME(l);
#endif
        take_off(l)
     :: else
     fi;
     release(l);
#endif
     d_step { pending[p] = 0; held[p] = 0 }
  fi
}

/* handle_futex_death() */
inline death(l, is_pending) {
  d_step {
    w = 0;
    if
    :: owner[l] == p + 1 -> assert(holder[l] == p + 1); owner[l] = 0; died[l] = 1; w = waiters[l]
#ifdef OLD_KERNEL
    :: is_pending && owner[l] == 0 && !died[l] -> w = 1
#else
    :: is_pending && owner[l] == 0 -> w = 1
#endif
    :: else -> if :: is_pending && owes[p] -> owed[l] = 1 :: else fi
    fi
  };
  if :: w -> wake(l) :: else fi
}

proctype T(byte p) {
  byte round, n, by_glibc; bool known, mark, inherited, got, w;
  {
#ifdef KNOWN
    known = p != STRANGE;
#else
    skip;
#endif
    do
    :: round < R ->
       if
       :: true -> lock(0); unlock(0)
       :: true -> try_lock(0); if :: got -> got = 0; unlock(0) :: else fi
#if NL > 1
       :: true -> lock(1); unlock(1)
       :: true -> lock(0); lock(1);
          if
          :: true -> unlock(1); unlock(0)
          :: true -> unlock(0); unlock(1)
          fi
       :: true -> lock(1); try_lock(0);
          if
          :: got -> got = 0;
             if
             :: true -> unlock(0); unlock(1)
             :: true -> unlock(1); unlock(0)
             fi
          :: else -> unlock(1)
          fi
#endif
       fi;
       round++
    :: else -> break
    od;
    assert(first[p] == HEAD && pending[p] == 0 && held[p] == 0)
  } unless { kill[p] };
  if
  :: kill[p] ->
     d_step { dead[p] = 1; asleep[p] = 0; known = 0; mark = 0; inherited = 0; got = 0; by_glibc = 0; held[p] = 0; round = 0 };
     n = first[p];
     do
     :: n == HEAD -> break
     :: else ->
        assert(n != 0 && n <= NL && round <= NL);          /* the kernel gives up at a word that it cannot read */
        first[p] = next[n - 1];                            /* its own note, read before the word is handed on */
        if :: n != pending[p] -> death((n - 1), 0) :: else fi;
        n = first[p]; round++
     od;
     if :: pending[p] != 0 -> death((pending[p] - 1), 1) :: else fi
  :: else
  fi;
  d_step { n = 0; w = 0; round = 0; known = 0; owes[p] = 0; first[p] = 0; pending[p] = 0; ended++ }
}

init {
  byte i, kills;
  atomic {
    do :: i < NT -> first[i] = NL + 1 + i; i++ :: else -> break od;
    i = 0;
    do :: i < NT -> run T(i); i++ :: else -> i = 0; break od
  };
  do
  :: kills < D ->
     if
     :: kill[0] = 1
     :: kill[1] = 1
#if NT > 2
     :: kill[2] = 1
#endif
     fi;
     kills++
  :: break
  od;
  ended == NT ->
  assert(owner[0] == 0 && (died[0] == (holder[0] != 0)));
  assert(owner[NL - 1] == 0 && (died[NL - 1] == (holder[NL - 1] != 0)))
}
