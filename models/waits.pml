/* A program that waits past the hooks: what wakes it.
 *
 * A reader R has one connection, and a thread that waits for it: through the hooks (it declares itself in the lane's wait word, and is
 * rung), or by a system call of its own (only bytes on TCP wake it). It may change its way at any time, also in the middle of a lane. A
 * sender S sends, by TCP or by the lane, and then sleeps itself, through the hooks, until all is read.
 *   evidence     a lane opens only where a wait through the hooks was seen since the last one was taken back; a wait of its own is never seen
 *   grace        S's sleep has a bound while bytes are unread in the ring and no reader has declared itself; then it takes them back:
 *                they go out by TCP, the lane is over, and the evidence is void (lane.pml's TAKEN says why none is lost or comes twice).
 *                Not here: where TCP does not take them all at once, the lane ends with them unread, and a raw wait is woken by what comes
 *                behind them on TCP (COMPLIANCE.md)
 *   supposition  (SUPPOSED) a lane may open without evidence, where calls block and never had to wait; never again after a take-back
 * A raw wait that began while bytes were in the ring, or before they came there, is the same to R: nothing wakes it.
 *
 * Checked: R is never asleep for good with bytes unread (an invalid end state); no lane is there of which R's waits were never seen; a
 * reader that always waits past the hooks has no lane ever (ALWAYS_RAW).
 *
 * run:  spin -a waits.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan
 * Must FAIL:
 *   NOEVIDENCE          a lane opens by the counts alone (with NOGRACE: the hang that async-io had; alone: a lane never seen)
 *   NOGRACE             S sleeps without a bound: a raw wait that begins on a lane hangs
 *   SUPPOSE_AGAIN       (with SUPPOSED) a supposition that was wrong is made again: a stall for each lane
 *   KEEP_EVIDENCE       taking back leaves the evidence standing: a lane that R's waits were not seen for opens again
 *   DECLARED_ONLY_LATER R declares itself after its second look: a wake-up through the hooks is lost
 */
#ifndef SENDS
#define SENDS 4
#endif

bool lane;                    /* open: bytes go by the ring */
bool seen;                    /* evidence: a wait through the hooks since the last take-back */
bool truly;                   /* the same, whatever the program under test does with its evidence */
bool ring, tcp;               /* unread bytes */
bool declared, rung;          /* the lane's wait word; the doorbell */
bool raw;                     /* R's way just now */
bool over;                    /* S is done: TCP's end */
bool doubted;                 /* a take-back was: nothing is supposed */
byte stalls;                  /* take-backs of lanes that were only supposed */
bool supposed;                /* ... which is all that the open lane has */
bool proper = true;           /* the lane that is open was opened on evidence of the present kind */

active proctype Reader() {
wait:
  if
#ifdef ALWAYS_RAW
  :: raw = true
#else
  :: raw = false
  :: raw = true
#endif
  fi;
  if
  :: raw ->
     /* its own system call: TCP, or nothing */
     (tcp || over)
  :: else ->
     atomic { seen = true; truly = true };
#ifndef DECLARED_ONLY_LATER
     declared = true;
     if :: ring || tcp || over -> skip
        :: else -> (rung || tcp || over)
     fi;
#else
     if :: ring || tcp || over -> skip
        :: else -> declared = true; (rung || tcp || over)
     fi;
#endif
     atomic { declared = false; rung = false }
  fi;
  /* the read goes through the hooks whatever the wait was, and takes both */
  atomic {
    if :: over && !ring && !tcp -> goto done :: else fi;
    ring = false; tcp = false
  };
  goto wait;
done:
  skip
}

active proctype Sender() {
  byte sent;
  do
  :: sent < SENDS ->
     sent++;
     /* perhaps a lane opens now */
     atomic {
       if
#ifdef NOEVIDENCE
       :: !lane && !tcp -> lane = true; proper = truly
#else
       :: !lane && !tcp && seen -> lane = true; proper = truly
#ifdef SUPPOSED
#ifdef SUPPOSE_AGAIN
       :: !lane && !tcp && !seen -> lane = true; supposed = true
#else
       :: !lane && !tcp && !seen && !doubted -> lane = true; supposed = true
#endif
#endif
#endif
       :: true
       fi;
       assert(!lane || proper)
     };
     if
     :: lane ->
        ring = true;
        if :: declared -> rung = true :: else fi
     :: else -> tcp = true
     fi;
     /* S sleeps until all is read */
     if
     :: !ring && !tcp
#ifndef NOGRACE
     :: atomic { lane && ring && !declared -> ring = false; tcp = true; lane = false; truly = false;
                 stalls = stalls + (supposed -> 1 : 0); supposed = false; doubted = true;
                 assert(stalls <= 1);
#ifndef KEEP_EVIDENCE
                 seen = false;
#endif
                 skip };
        (!ring && !tcp)
#endif
     fi
  :: else -> break
  od;
  over = true
}

#ifdef ALWAYS_RAW
active proctype Never() {
end_never:
  (lane) -> assert(false)
}
#endif
