/* cq.pml - posting to a completion queue: two levels of arming, under x86-TSO.
 *
 * A consumer process has two threads, each in epoll_wait() on a set of its own; both sets use one CQ, hence one doorbell
 * (an eventfd with EPOLLET in both epoll instances, never read).  Three connections: 0 and 1 belong to link group 0 and
 * are written by two producer processes (parent and child), 2 belongs to link group 1 and is written by a third.
 *   connection   rwait word (in the DMB): 0 = on a consumer's active list, else the epoch of its arming
 *   link page    news word: one bit a connection; cqsleep word: 0 or the epoch of the last sleep declared there
 *   publisher    RMW on prod (full fence); load rwait; if armed e: fetch_or the news bit; load cqsleep; if s != 0: ring,
 *                THEN cqsleep: s -> 0 by compare-and-swap; and only THEN rwait: e -> 0 by compare-and-swap
 *   consumer     takes the news words (swap 0) and moves those connections to its active list, hands on what is not
 *                its own; looks at every active connection; one that has nothing is taken off the list, armed (swap in a
 *                fresh epoch) and looked at again; with nothing active it declares its sleep in every link page (swap in
 *                a fresh epoch), looks at all news words again, and sleeps.  It never clears cqsleep itself.
 * Epochs are only compared with what stands in the word, so the model keeps of each held one only whether it still
 * stands there; it is finite although producers and consumers go on for ever.
 * `u` says that bytes are unread; a ring with u may take more bytes, or be full: a writer that waits for room helps first
 * (it posts as a publisher does).  Any producer may be SIGKILLed at any step; TCP's EOF comes when the last holder of
 * the connection is dead.  One consumer thread may go off into the program for ever.
 *
 * Checked: nobody is left asleep while bytes of a live producer, or of a connection with EOF, are unread and a thread
 * that would report them sleeps; with ET, a report is made only for something published since the last report.
 * The mirrored side (writers waiting for room: wwait, cons, EPOLLOUT) is this model with "bytes" read as "room".
 *
 * run:  spin -DK=1 -a cq.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m1000000 -w26
 *       K bounds the bytes of each producer (without: they go on for ever); KILL: producers are killed; SHARE: the child
 *       writes on the parent's connection too; LG2: the second link group; ASLEEP: begins with everybody armed
 * Also right, must pass:
 *   MASK        a consumer takes only its own bits (fetch_and), nothing is handed on
 *   BOTH        connection 0 is in both sets
 *   ONESET      both threads wait in one set: one edge wakes one of them; who leaves with connections still active rings
 *   ONESET+ONESHOT  a report takes the connection off the list until its thread comes back: with nothing left on the list, a thread that leaves
 *               declares the sleep for the others, and looks at all news words
 *   ET          reports by edge: bytes published since the last report, not bytes unread
 *   BLOCKING    threads that block in recv(): they never look at news words, so they declare the CQ's sleep BEFORE they
 *               arm; after any ring they look at everything again (found by loom on the code)
 *   HOSTILE     the peer of link group 1 writes what it likes in its page and DMB, and rings at will
 * Must FAIL:
 *   NORECHECK       no second look at the connection after arming it
 *   NORELOOK        no second look at the news words after declaring the sleep
 *   CLAIM_S         cqsleep cleared before the ring (a kill between them; with KILL)
 *   CLAIM_R         rwait cleared before the ring (with KILL and SHARE)
 *   BLIND_S BLIND_R cqsleep / rwait cleared without comparing the epoch
 *   NOEPOCH_S NOEPOCH_R   every sleep / arming uses the same epoch
 *   PLAIN_P PLAIN_W PLAIN_S   plain store (store buffer) in place of the RMW on prod / rwait / cqsleep
 *   PLAIN_N         news bit set by load and store
 *   CLEAR_LATE      news bits cleared after looking at the connections
 *   SLEEPCLEAR      a consumer that wakes clears cqsleep (the other sleeper's declaration goes with it)
 *   NOFORWARD       bits of the other set's connections are dropped
 *   NOHELP          a writer that waits for room does not post first (with KILL and SHARE)
 *   BOTH+MASK       a connection in two sets, and nothing handed on
 *   ONESET+NOHANDOVER   a thread leaves with connections active while another sleeps in the same set
 *   ONESET+ONESHOT+NODECLARE  such a thread leaves without a word: whoever rang for it has taken the others' sleep for answered
 *   ONESET+ONESHOT+IFUNDECLARED  it declares only where no sleep stands: one that somebody has rung for is cleared after
 *   ONESET+REMOVE_LATE  a connection leaves the active list after the second look instead of before arming
 *   BLOCKING+ARM_FIRST  such a thread arms first: a publisher that comes late, with bytes already read or only helping,
 *                   disarms it without a ring
 *   ET+ET_BIT       a news bit is reported without comparing prod with what was reported last
 *   ET+ET_MARK      what was reported last is noted at the next epoll_wait() instead of at the report
 *   HOSTILE+HOSTILE_DB  the hostile peer shares the doorbell with link group 0 and read()s it empty
 */
#if defined(HOSTILE) && !defined(LG2)
#define LG2
#endif
#ifdef LG2
#define NC 3
#else
#define NC 2
#endif
#define BIT(x) (1 << (x))
#define PG(x) ((x) / 2)                       /* link page of a connection */

#ifdef ONESET
#define E(me) 0
#define SET(s) (BIT(NC) - 1)
#define LAST 0
#else
#define E(me) me
#define LAST 1
#ifdef BOTH
#define SET(s) ((s) == 0 -> 5 : 3)
#else
#define SET(s) ((s) == 0 -> 5 : 2)
#endif
#endif

bool u[3];                  /* prod != cons */
bool fresh[3];               /* prod != prod at the last report (ET) */
byte stake[3];               /* live producers that wait for these bytes to be read: one bit each */
byte rwait[3], cqsleep[2], news[2];
byte act[2], mbox[2], tcpev[2]; bool eb[2];   /* of each set: active list, handed on, TCP events, edge waiting */
bool away;                   /* thread 0 went off */
byte dead; bool kill[3];
byte he[3], hx[3], hs[3];    /* what producers hold of rwait[hx] and cqsleep */
byte pendP[3], pendW[2], pendS[2];      /* store buffers */

byte shot;                   /* connections that were reported, and are not asked for again yet (ONESHOT) */

#ifdef ET
#define NEWS(x) fresh[x]
#elif defined(ONESHOT)
#define NEWS(x) (u[x] && (shot & BIT(x)) == 0)
#else
#define NEWS(x) u[x]
#endif
#ifdef ONESHOT
#define GONE(x) (away && (shot & BIT(x)) != 0)
#elif defined(ONESET)
#define GONE(x) false
#else
#define GONE(x) (away && (SET(1) & BIT(x)) == 0)
#endif
#define RING eb[0] = 1; eb[1] = 1

/* epochs by their meaning: a word is 0 or 1 (declared); a publisher holds 0 nothing, 1 the epoch that stands there, 2 one
 * that stands there no more and, being fresh each time, never will again */
inline stale_r(x) {
#ifndef NOEPOCH_R
  if :: he[0] == 1 && hx[0] == x -> he[0] = 2; hx[0] = 0 :: else fi;
  if :: he[1] == 1 && hx[1] == x -> he[1] = 2; hx[1] = 0 :: else fi;
  if :: he[2] == 1 && hx[2] == x -> he[2] = 2; hx[2] = 0 :: else fi;
#endif
  skip
}
inline stale_s(pg) {
#ifndef NOEPOCH_S
  if :: hs[0] == 1 && pg == 0 -> hs[0] = 2 :: else fi;
  if :: hs[1] == 1 && pg == 0 -> hs[1] = 2 :: else fi;
  if :: hs[2] == 1 && pg == 1 -> hs[2] = 2 :: else fi;
#endif
  skip
}

inline clear_s() {
  d_step {
    if
#ifndef BLIND_S
    :: hs[p] == 1 && cqsleep[PG(x)] ->
#else
    :: true ->
#endif
       cqsleep[PG(x)] = 0; stale_s(PG(x))
#ifndef BLIND_S
    :: else
#endif
    fi;
    hs[p] = 0 }
}
inline clear_r() {
  d_step {
    if
#ifndef BLIND_R
    :: he[p] == 1 && rwait[x] ->
#else
    :: true ->
#endif
       rwait[x] = 0; stale_r(x)
#ifndef BLIND_R
    :: else
#endif
    fi;
    he[p] = 0; hx[p] = 0 }
}

inline post() {              /* after the RMW on prod */
  d_step { he[p] = rwait[x]; hx[p] = (he[p] -> x : 0) };
  if
  :: he[p] != 0 ->
#ifdef PLAIN_N
     w = news[PG(x)];
     d_step { news[PG(x)] = w | BIT(x); w = 0 };
#else
     d_step { pendP[p] == 0 -> news[PG(x)] = news[PG(x)] | BIT(x) };
#endif
#ifdef CLAIM_R
     clear_r();
#endif
     hs[p] = cqsleep[PG(x)];
     if
     :: hs[p] != 0 ->
#ifdef CLAIM_S
        clear_s();
        d_step { RING }
#else
        d_step { RING };
        clear_s()
#endif
     :: else
     fi;
#ifndef CLAIM_R
     clear_r()
#endif
  :: else
  fi
}

proctype Pr(byte p) {
  byte x, w, k;
  {
    x = p;
    do
#ifdef SHARE
    :: d_step { p == 1 && pendP[p] == 0 -> x = 1 - x }          /* the child writes on both */
#endif
#ifdef K
    :: k < K -> k++;
#else
    ::
#endif
       if
#ifdef PLAIN_P
       :: d_step { pendP[p] == 0 -> pendP[p] = x + 1 }
#else
       :: d_step { p == 0 -> u[x] = 1; fresh[x] = 1 }                             /* publish and go on */
       :: d_step { u[x] = 1; fresh[x] = 1; stake[x] = stake[x] | BIT(p) }         /* or wait until it is read */
#endif
       :: d_step { (u[x] && pendP[p] == 0) -> stake[x] = stake[x] | BIT(p) };     /* full: wait for room */
#ifdef NOHELP
          goto wait
#endif
       fi;
       post();
wait:  (pendP[p] == 0);
       d_step { ((stake[x] & BIT(p)) == 0 || GONE(x)) -> stake[x] = stake[x] & ~BIT(p) }
    :: break
    od
  } unless { kill[p] };
  skip;
  d_step {                                   /* the store buffer drains though its thread is dead */
    if
    :: pendP[p] != 0 -> u[pendP[p] - 1] = 1; fresh[pendP[p] - 1] = 1; pendP[p] = 0
    :: else
    fi;
    he[p] = 0; hx[p] = 0; hs[p] = 0; x = 0; w = 0; k = 0;
    if
    :: kill[p] ->
       dead = dead | BIT(p);
       stake[0] = stake[0] & ~BIT(p); stake[1] = stake[1] & ~BIT(p); stake[2] = stake[2] & ~BIT(p);
       if                                    /* EOF: TCP's event is in every set that holds the connection */
#ifndef SHARE
       :: true -> tcpev[0] = tcpev[0] | (SET(0) & BIT(p)); tcpev[LAST] = tcpev[LAST] | (SET(1) & BIT(p))
#else
       :: dead == 3 -> tcpev[0] = tcpev[0] | SET(0); tcpev[LAST] = tcpev[LAST] | SET(1)
       :: else
#endif
       fi
    :: else
    fi };
  if
#ifndef SHARE
  :: (dead & BIT(p)) -> (!u[p] || GONE(p))
#else
  :: dead == 3 -> ((!u[0] || GONE(0)) && (!u[1] || GONE(1)))
#endif
  :: else
  fi
}

/* one step: swap the news word, and (in the process's own memory) see what was handed on and what TCP has to say */
inline take(pg) {
  t = news[pg];
#ifdef MASK
  t = t & SET(E(me));
#endif
#ifdef CLEAR_LATE
  late = late | t;
#else
  news[pg] = news[pg] & ~t;
#endif
  act[E(me)] = act[E(me)] | (t & SET(E(me))) | mbox[E(me)] | tcpev[E(me)]; mbox[E(me)] = 0; tcpev[E(me)] = 0;
#ifdef ET_BIT
  rep = rep | (t & SET(E(me)));
#endif
#if defined(NOFORWARD) || defined(ONESET) || defined(MASK)
  t = 0
#else
  t = t & SET(1 - me)
#endif
}
inline hand_on() {
#if !defined(NOFORWARD) && !defined(ONESET) && !defined(MASK)
  if
  :: t != 0 ->
     d_step { mbox[1 - me] = mbox[1 - me] | t; t = 0 };
     d_step { eb[1 - me] = 1 }
  :: else
  fi
#else
  skip
#endif
}
inline next_active() {       /* in a step */
  do
  :: i < NC && (act[E(me)] & BIT(i)) == 0 -> i++
  :: else -> break
  od;
  skip
}

proctype Cs(byte me) {
  byte i, t, rep, late;
top:
#ifdef BLOCKING
  if
  :: d_step { true -> act[E(me)] = SET(E(me)); tcpev[E(me)] = 0; next_active() }
  fi;
#ifndef ARM_FIRST
  d_step { cqsleep[0] = 1; stale_s(0) };
#endif
#else
  if
  :: d_step { true -> take(0); next_active() }
  fi;
  hand_on();
#endif
#ifdef LG2
  d_step { take(1); i = 0; next_active() };
  hand_on();
#endif
look:
  if
#ifdef ET_BIT
  :: d_step { i < NC && (fresh[i] || (rep & BIT(i))) -> rep = rep & ~BIT(i) };
#elif defined(ET)
  :: d_step { i < NC && fresh[i] -> skip };
#elif defined(ONESHOT)
  :: d_step { i < NC && NEWS(i) -> u[i] = 0; stake[i] = 0; act[0] = act[0] & ~BIT(i); shot = shot | BIT(i) };
#else
  :: d_step { i < NC && u[i] -> u[i] = 0; stake[i] = 0 };
#endif
#ifdef ET
#ifndef ET_MARK
     d_step { assert(fresh[i]); fresh[i] = 0 };             /* the report */
#endif
     d_step { u[i] = 0; stake[i] = 0 };                     /* the program reads until EAGAIN */
#endif
     if                                                     /* the thread goes off, or comes back for more */
     :: me == 0 -> goto leave
#ifdef ONESHOT
     :: d_step { true -> shot = shot & ~BIT(i); act[0] = act[0] | BIT(i) }
#else
     :: true -> skip
#endif
     fi;
#ifdef ET_MARK
     fresh[i] = 0;
#endif
     goto look
  /* a look that finds nothing does nothing: so the model arms at any time */
#ifdef PLAIN_W
  :: d_step { i < NC && pendW[me] == 0 -> act[E(me)] = act[E(me)] & ~BIT(i); pendW[me] = i + 1 };
#elif defined(ONESET)
  :: d_step { i < NC ->
#ifndef REMOVE_LATE
       act[0] = act[0] & ~BIT(i);
#endif
       skip };
     d_step { rwait[i] = 1; stale_r(i) };
#else
  :: d_step { i < NC -> act[E(me)] = act[E(me)] & ~BIT(i); rwait[i] = 1; stale_r(i) };
#endif
     if
#ifndef NORECHECK
     :: d_step { NEWS(i) -> act[E(me)] = act[E(me)] | BIT(i) }
     :: d_step { !NEWS(i) ->
#else
     :: d_step { true ->
#endif
#ifdef REMOVE_LATE
          skip };
        d_step { act[0] = act[0] & ~BIT(i);
#endif
          next_active() }
     fi;
     goto look
#ifdef CLEAR_LATE
  :: d_step { i == NC && late != 0 -> news[0] = news[0] & ~late; news[1] = news[1] & ~late; late = 0 }; goto look
  :: d_step { i == NC && late == 0 && act[E(me)] != 0 -> i = 0 }; goto top
  :: d_step { i == NC && late == 0 && act[E(me)] == 0 -> i = 0 }
#else
  :: d_step { i == NC && act[E(me)] != 0 -> i = 0 }; goto top
  :: d_step { i == NC && act[E(me)] == 0 -> i = 0 }
#endif
  fi;
#ifdef PLAIN_S
  d_step { pendS[me] == 0 -> pendS[me] = 1 };
#elif !defined(BLOCKING) || defined(ARM_FIRST)
  d_step { pendW[me] == 0 -> cqsleep[0] = 1; stale_s(0) };
#endif
#ifdef LG2
  d_step { pendW[me] == 0 -> cqsleep[1] = 1; stale_s(1) };
#endif
#ifdef MASK
#define MINE(pg) (news[pg] & SET(E(me)))
#else
#define MINE(pg) news[pg]
#endif
#if !defined(NORELOOK) && !defined(BLOCKING)
  if :: MINE(0) -> goto top :: !MINE(0) fi;
#ifdef LG2
  if :: MINE(1) -> goto top :: !MINE(1) fi;
#endif
#endif
end_sleep:
  d_step { (eb[E(me)] || tcpev[E(me)]) -> eb[E(me)] = 0 };
#ifdef SLEEPCLEAR
  cqsleep[0] = 0;
#endif
  goto top;
leave:
#if defined(ONESET) && !defined(NOHANDOVER)
  if
  :: d_step { act[0] != 0 -> eb[0] = 1 }
  :: act[0] == 0 ->
#if defined(ONESHOT) && !defined(NODECLARE)
#ifdef IFUNDECLARED
     if :: !cqsleep[0] -> d_step { cqsleep[0] = 1; stale_s(0) } :: else fi;
#else
     d_step { cqsleep[0] = 1; stale_s(0) };
#endif
#ifdef LG2
     d_step { cqsleep[1] = 1; stale_s(1) };
#endif
     if :: news[0] || news[1] -> eb[0] = 1 :: else fi
#else
     skip
#endif
  fi;
#endif
  away = 1;
  i = 0
}

proctype Hostile() {
end_h:
  do
  :: rwait[2] = 0
  :: rwait[2] = 1
  :: news[1] = 0
  :: news[1] = 7                             /* also bits of connections that are not in this page */
  :: cqsleep[1] = 0
  :: cqsleep[1] = 1
  :: d_step { RING }
#ifdef HOSTILE_DB
  :: d_step { eb[0] = 0; eb[1] = 0 }
#endif
  :: break
  od
}

proctype Buffers() {
end_b:
  do
#ifdef PLAIN_P
  :: d_step { pendP[0] != 0 -> u[pendP[0] - 1] = 1; fresh[pendP[0] - 1] = 1; stake[pendP[0] - 1] = stake[pendP[0] - 1] | 1; pendP[0] = 0 }
  :: d_step { pendP[1] != 0 -> u[pendP[1] - 1] = 1; fresh[pendP[1] - 1] = 1; stake[pendP[1] - 1] = stake[pendP[1] - 1] | 2; pendP[1] = 0 }
  :: d_step { pendP[2] != 0 -> u[2] = 1; fresh[2] = 1; stake[2] = stake[2] | 4; pendP[2] = 0 }
#endif
#ifdef PLAIN_W
  :: d_step { pendW[0] != 0 -> rwait[pendW[0] - 1] = 1; stale_r((pendW[0] - 1)); pendW[0] = 0 }
  :: d_step { pendW[1] != 0 -> rwait[pendW[1] - 1] = 1; stale_r((pendW[1] - 1)); pendW[1] = 0 }
#endif
#ifdef PLAIN_S
  :: d_step { pendS[0] != 0 -> cqsleep[0] = 1; stale_s(0); pendS[0] = 0 }
  :: d_step { pendS[1] != 0 -> cqsleep[0] = 1; stale_s(0); pendS[1] = 0 }
#endif
  :: false
  od
}

proctype Killer() {
end_k:
  do
  :: kill[0] = 1; break
  :: d_step { kill[0] = 1; kill[1] = 1 }; break
  :: break
  od
}

init {
  atomic {
#ifdef ASLEEP
    rwait[0] = 1; rwait[1] = 1; rwait[2] = 1;
#else
    act[0] = SET(0); act[LAST] = act[LAST] | SET(1);
#endif
    run Pr(0); run Pr(1);
#ifdef HOSTILE
    run Hostile();
#elif defined(LG2)
    run Pr(2);
#endif
    run Cs(0); run Cs(1); run Buffers();
#ifdef KILL
    run Killer();
#endif
    skip
  }
}
