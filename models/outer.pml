/* Where threads wait for an epoll set: in the set itself while it has no lane, else in the outer instance, in which are the set and the
 * doorbell (crates/core/src/epoll/outer.rs).
 *
 * Threads T wait. One that finds no lane in the set is counted (`within`), looks again whether there are lanes, and sleeps in the kernel's
 * own wait, which TCP and the kicker wake. One that finds lanes looks at them, declares itself, looks again, and sleeps in the outer
 * instance, which the doorbell wakes, too. Lanes come and go; whoever counts the first one puts the kicker into the set where threads are
 * within. It is level-triggered: all of them wake. The last one that is within takes it out, under the lock that lanes are counted under.
 * A thread may be cancelled in the kernel's wait, which unwinds it, or leave it in a way that nobody hears of (siglongjmp): it stays
 * counted. Then the kicker stays, until somebody who sees it over and over gives up: the set has no lanes any more (`lost`). A thread that
 * is only slow may be taken for such a one.
 * Not here: a forked child, which has its parent's count of threads but none of its lanes, and leaves its parent's kicker alone (`own`). How a
 * publisher finds out that a thread sleeps (cq.pml). What a byte goes through that is taken back to TCP (lane.pml).
 *
 * Checked: nobody sleeps for good with bytes unread, on a lane or on TCP (an invalid end state: the sender waits for each byte to be read);
 * the kicker is not there with nobody to wake (at the end).
 *
 * run:  spin -a outer.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan
 * -DGOES: a thread may leave the kernel's wait unheard.
 * Must FAIL:
 *   LOOK_FIRST  a thread looks for lanes before it is counted, not after
 *   KICK_FIRST  the kicker is thought of before the lane is counted, not after
 *   LATE        the kicker is announced after the look at who is within, not before: it may stay with nobody to take it out
 *   ONCE        the kicker is edge-triggered: one thread hears of it
 *   FIRST_ENDS  who hears of the kicker first takes it out
 *   DEDUCT      (with GOES) those that did not hear of it in time are deducted from who is within: one that comes after them is taken for one of them
 *   KEEP        (with GOES) the kicker is given up, the lanes are not
 */
#ifndef T
#define T 2
#endif
#ifndef BYTES
#define BYTES 3
#endif
#ifndef LANES
#define LANES 2
#endif

bool control;                 /* the lock that lanes are counted under */
byte within, deducted;
bool kicker, lost;
#ifdef ONCE
bool told;                    /* the kicker's only event has been taken */
#endif
byte lanes;
byte sleepers;                /* in the outer instance, or about to be */
bool bell;                    /* the doorbell's edge */
bool ring, tcp;               /* an unread byte */
byte waiting = T;             /* threads that have not gone */
bool over;

#define LOCK   atomic { !control -> control = true }
#define UNLOCK control = false
#ifdef DEDUCT
#define SOMEBODY (within != deducted)
#else
#define SOMEBODY (within != 0)
#endif
#ifdef ONCE
#define KICKED (kicker && !told)
#else
#define KICKED (kicker)
#endif

/* Under CONTROL. */
inline end_kick() {
#ifdef FIRST_ENDS
  kicker = false
#else
  if :: SOMEBODY && lanes > 0 -> skip
     :: else -> kicker = false
  fi
#endif
}

/* A look at what the kernel tells: of TCP, and of the kicker, which it attends to. */
inline hear_of_kick() {
#ifdef ONCE
  told = true;
#endif
  LOCK;
  if
  :: kicker ->
     /* it has been there for long, perhaps */
     if :: true -> skip
#ifdef GOES
#ifdef DEDUCT
        :: SOMEBODY -> deducted = within
#else
        :: SOMEBODY && lanes > 0 -> lost = true
#endif
#endif
     fi;
     end_kick()
  :: else -> skip
  fi;
  UNLOCK
}

inline leave() {
  within--;
  if :: kicker -> LOCK; end_kick(); UNLOCK
     :: else -> skip
  fi
}

/* Under CONTROL. A thread that leaves just now takes the kicker out, or is seen to have left. */
inline kick() {
  if
  :: kicker -> skip
#ifdef LATE
  :: else -> if :: SOMEBODY -> kicker = true :: else -> skip fi
#else
  :: else ->
     kicker = true;
     if :: SOMEBODY -> skip :: else -> kicker = false fi
#endif
  fi;
#ifdef ONCE
  told = false
#endif
}

/* The lanes' bytes that are unread go by TCP. Under CONTROL. */
inline revoke() {
  atomic { lanes = 0; if :: ring -> ring = false; tcp = true :: else -> skip fi }
}

proctype Thread() {
  bool kicked;
wait:
  /* a thread may do something else from now on, if another one waits */
  if
  :: true -> skip
  :: atomic { waiting > 1 && !ring && !tcp -> waiting-- }; goto gone
  fi;
#ifdef LOOK_FIRST
  if :: lanes > 0 -> goto on_lanes :: else -> skip fi;
  within++;
#else
  within++;
  if :: lanes > 0 -> leave(); goto on_lanes :: else -> skip fi;
#endif
end_kernel:
  if
  :: atomic { tcp -> tcp = false }; leave(); goto wait
  :: KICKED -> leave(); hear_of_kick(); goto wait
  :: over -> leave(); goto gone
  /* cancelled */
  :: atomic { waiting > 1 -> waiting-- }; leave(); goto gone
#ifdef GOES
  :: atomic { waiting > 1 -> waiting-- }; goto gone
#endif
  fi;
on_lanes:
  /* given up */
  if
  :: lost && lanes > 0 ->
     LOCK;
#ifndef KEEP
     revoke();
     end_kick();
#else
     kicker = false;
#endif
     UNLOCK
  :: else -> skip
  fi;
  if :: atomic { ring -> ring = false }; goto wait
     :: atomic { tcp -> tcp = false }; goto wait
     :: else -> skip
  fi;
  sleepers++;
  if :: ring -> sleepers--; goto on_lanes
     :: else -> skip
  fi;
end_outer:
  if
  :: atomic { bell -> bell = false }
  :: tcp
  :: KICKED -> hear_of_kick()
  :: over
  fi;
  sleepers--;
  if :: over && !ring && !tcp -> goto gone
     :: else -> goto wait
  fi;
gone:
  /* what it leaves unarmed is a sleeper's */
  atomic { if :: ring && sleepers > 0 -> bell = true :: else -> skip fi }
}

/* The connection comes on lanes and goes back to TCP. */
proctype Lanes() {
  byte n;
  do
  :: n < LANES && !over ->
     n++;
     LOCK;
     if
     :: lost -> skip
     :: else ->
#ifdef KICK_FIRST
        kick();
        lanes = 1;
#else
        lanes = 1;
        kick();
#endif
        if :: sleepers > 0 -> bell = true :: else -> skip fi
     fi;
     UNLOCK;
     if
     :: n < LANES ->
        LOCK;
        revoke();
        UNLOCK
     :: true -> break
     fi
  :: else -> break
  od
}

proctype Sender() {
  byte n;
  do
  :: n < BYTES ->
     n++;
     atomic {
       if
       :: lanes > 0 -> ring = true; if :: sleepers > 0 -> bell = true :: else -> skip fi
       :: else -> tcp = true
       fi
     };
     /* it is read */
     !ring && !tcp
  :: else -> break
  od;
  over = true
}

init {
  byte i;
  atomic {
    for (i : 1 .. T) { run Thread() }
    run Lanes();
    run Sender()
  };
#ifndef GOES
  /* all have gone */
  _nr_pr == 1;
  assert(!kicker && within == 0)
#endif
}
