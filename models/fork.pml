/* fork.pml - parent and child write on one end point: a robust send lock whose holder is killed, and the count of holders.
 *
 * The end point lives in memory shared by the process tree: send lock (robust: a dead owner is reported, EOWNERDEAD),
 * private cursor `cur` (where the next byte goes; saves a look at the peer's memory), holders.  The peer's DMB: prod,
 * cons, data, wait word.  write() = lock; copy; publish (compare-and-swap on prod from cur); ring where the reader
 * has declared itself; cur = prod; unlock; return.  Parent or child is SIGKILLed at any step; the survivor, told that the
 * owner died, believes nothing but the shared words: cur = prod, and rings, since the dead may not have come to it.
 * fork(): the parent counts the child before it exists; close(): last use, then count down; the killed never count
 * down.  What may be done only by a sole holder (here: `solo`) is done at count 1.
 *
 * Checked: each writer's bytes arrive in order and once; all of those whose write() returned arrive; at most the one
 * being written when its writer was killed arrives besides; nobody is left waiting; solo is never done beside a living
 * user.  The receive side is this with cons in place of prod: a reader killed before its compare-and-swap on cons leaves the
 * byte to its sibling, one killed after it takes the byte along, as with TCP.
 *
 * run:  spin -a fork.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m1000000 -w24
 * Must FAIL:
 *   NORECOVER     the survivor goes on with cur as the dead left it, and stores prod
 *   NORING        the survivor does not ring for the dead (with the ring full and the reader asleep all hangs)
 *   NOTROBUST     the lock of a dead owner is never handed on
 *   STEAL         a lock that is held for long is taken over from a living owner (it may only be stopped)
 *   COPY_EARLY    the bytes are copied before the lock is taken
 *   FINISH        the survivor publishes what the dead had copied (it may be published already)
 *   COUNT_LATE    the child counts itself
 *   DEC_EARLY     close() counts down before its last use
 * Also right, must pass:
 *   DEC_DEAD      who is told EOWNERDEAD counts down for the dead: it held the lock, so it had not closed
 */
#ifndef K
#define K 2                  /* bytes of each writer */
#endif
#ifndef R
#define R 2                  /* ring cells */
#endif
#define VAL(p, k) ((p) * 8 + (k) + 1)

byte prod, cons, cur, data[R];
byte owner;                  /* 0 free, else p + 1 */
bool rwait, edge;
byte returned[2], got[2];
bool alive[2], using[2], forked, kill[2];
byte holders;

#define OTHER (1 - p)

proctype W(byte p) {
  byte k; bool ok;
  {
    skip;
#ifdef COUNT_LATE
    if :: p == 1 -> holders++ :: else fi;
#endif
    do
    :: p == 0 && !forked ->
#ifndef COUNT_LATE
       holders++;
#endif
       atomic { forked = 1; alive[1] = 1; using[1] = 1; run W(1) }
    :: k < K ->
#ifdef COPY_EARLY
       data[cur % R] = VAL(p, k);
#endif
       if
       :: d_step { owner == 0 -> owner = p + 1 }
#ifndef NOTROBUST
       :: d_step { owner == OTHER + 1 && !alive[OTHER] -> owner = p + 1 };     /* EOWNERDEAD */
#ifdef DEC_DEAD
          holders--;
#endif
#ifdef FINISH
          d_step { if :: prod == cur -> prod = cur + 1 :: else prod = prod + 1 fi };
#endif
#ifndef NORECOVER
          cur = prod;
#endif
#ifndef NORING
          if :: rwait -> edge = 1 :: !rwait fi
#endif
#endif
#ifdef STEAL
       :: d_step { owner == OTHER + 1 -> owner = p + 1; cur = prod }
#endif
       fi;
       (cur - cons < R);                     /* waits for room (in the lock, so that writes stay whole) */
#ifndef COPY_EARLY
       data[cur % R] = VAL(p, k);
#endif
       d_step {
#ifdef NORECOVER
         prod = cur + 1; ok = 1
#else
         if
         :: prod == cur -> prod++; ok = 1
         :: else -> ok = 0                   /* cannot be: only the lock's owner publishes */
         fi;
         assert(ok)
#endif
       };
       if :: rwait -> edge = 1 :: !rwait fi;
       cur = prod;
       d_step { if :: owner == p + 1 -> owner = 0 :: else fi; ok = 0; k++ };
       returned[p]++
    :: d_step { holders == 1 && using[p] -> assert(!(using[OTHER] && alive[OTHER])) }; break     /* solo */
    :: p == 1 || forked -> break
    od;
    /* close() */
#ifdef DEC_EARLY
    holders--;
    using[p] = 0
#else
    using[p] = 0;
    holders--
#endif
  } unless { kill[p] };
  atomic { alive[p] = 0; using[p] = 0; k = 0 }
}

#define EOF (!alive[0] && !alive[1])

proctype Rd() {
  byte v; bool e;
  do
  :: e = EOF;
     if
     :: prod != cons ->
        v = data[cons % R];
        d_step {
          assert(v == VAL(v / 8, got[v / 8]));             /* next of its writer: none lost, none twice */
          got[v / 8]++; v = 0 };
        cons++
     :: prod == cons && e -> break
     :: prod == cons && !e ->
        rwait = 1;
        if
        :: prod != cons
        :: prod == cons ->
           (edge || EOF);
           edge = 0
        fi;
        rwait = 0
     fi
  od;
  assert(got[0] >= returned[0] && got[0] <= returned[0] + kill[0]);
  assert(got[1] >= returned[1] && got[1] <= returned[1] + kill[1])
}

init {
  atomic { alive[0] = 1; using[0] = 1; holders = 1; run W(0); run Rd() };
  if
  :: kill[0] = 1
  :: kill[1] = 1
  :: skip
  fi
}
