/* lifecycle.pml - where a connection end stands with the broker: one word, three that change it at once.
 *
 * | event | Watched | Nominated | Shaking | Open | Stays | Given | Closed |
 * |---|---|---|---|---|---|---|---|
 * | Nominate | Nominated | - | - | - | - | - | - |
 * | AskAgain | - | Watched | - | - | - | - | - |
 * | Match | - | Shaking | - | - | - | - | - |
 * | Open | Open | Open | Open | Open | - | - | - |
 * | Keep | Open | Open | Open | Open | - | - | - |
 * | End | Watched | Watched | Watched | Watched | - | - | - |
 * | GiveUp | Stays | Stays | Stays | Stays | - | - | - |
 * | Bar | Stays | Stays | Stays | Stays | Stays | Stays | - |
 * | Give | Given | Given | Given | Given | - | - | - |
 * | TakeBack | - | - | - | - | - | Watched | - |
 * | Close | Closed | Closed | Closed | Closed | Closed | Closed | Closed |
 *
 * The table is that of crates/shm/src/lifecycle.rs, whose unit test compares the two.  The session's thread nominates, is matched, opens
 * lanes and ends them, under the session's lock.  A child of a fork gives the connection to another program, with no lock of the session's
 * (Give).  Any thread bars it (Bar).  The one that has it finds that the others have let go of it (TakeBack), and closes it (Close).
 *
 * Checked: while others have it, or once it is barred, no phase leads to a lane; a closed one stays closed; a handshake begins from a
 * nomination only.
 *
 * run:  spin -a lifecycle.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 * Must FAIL:
 *   LOOK_FIRST  the session looks at the phase, then stores the next one without comparing (what `eager::again` did)
 *   BLIND_MATCH a match begins a handshake in whatever phase
 */
#ifndef TURNS
#define TURNS 5              /* events of the session */
#endif

mtype = { Watched, Nominated, Shaking, Open, Stays, Given, Closed };
mtype phase = Watched;
bool theirs;                 /* another program has it, or it is barred */

/* The rows above. */
inline nominate() { atomic { if :: phase == Watched -> phase = Nominated :: else fi } }
inline ask_again() { atomic { if :: phase == Nominated -> phase = Watched :: else fi } }
inline match() {
  atomic {
    if
#ifdef BLIND_MATCH
    :: phase != Closed -> phase = Shaking
#else
    :: phase == Nominated -> phase = Shaking
#endif
    :: else
    fi;
    assert(phase != Shaking || !theirs)
  }
}
inline open() {
  atomic {
    if :: phase == Stays || phase == Given || phase == Closed :: else -> phase = Open fi;
    assert(phase != Open || !theirs)
  }
}
#ifdef LOOK_FIRST
inline end() {
  bool may;
  atomic { may = !(phase == Stays || phase == Given || phase == Closed) };
  if :: may -> phase = Watched :: else fi
}
#else
inline end() { atomic { if :: phase == Stays || phase == Given || phase == Closed :: else -> phase = Watched fi } }
#endif
inline give_up() {
  atomic { if :: phase == Stays || phase == Given || phase == Closed :: else -> phase = Stays; theirs = true fi }
}
inline bar() { atomic { if :: phase != Closed -> phase = Stays; theirs = true :: else fi } }
inline give() {
  atomic { if :: phase == Stays || phase == Given || phase == Closed :: else -> phase = Given; theirs = true fi }
}
inline take_back() { atomic { if :: phase == Given -> phase = Watched; theirs = false :: else fi } }

proctype Session() {
  byte turn;
  do
  :: turn < TURNS ->
     if
     :: true -> nominate()
     :: true -> ask_again()
     :: true -> match()
     :: true -> open()
     :: true -> end()
     :: true -> give_up()
     fi;
     turn++
  :: turn == TURNS -> break
  od
}

proctype Child() {
  give();
  if :: true -> give() :: true fi
}

proctype Owner() {
  if :: true -> bar() :: true fi;
  take_back();
  if :: true -> take_back() :: true fi;
  phase = Closed;
  assert(phase == Closed)
}

init {
  atomic { run Session(); run Child(); run Owner() }
}
