/* handshake.pml - from TCP to lanes: CLC through a broker that may die, between ends that may die, close, fail or time out.
 *
 * Client C and server S share one TCP connection.  Direction 0 is C -> S, direction 1 S -> C; its DMB belongs to its
 * receiver.  The directions meet only in the handshake, so bytes are modelled in one of them at a time (DIR), from the
 * first moment on: a sender, a reader, and at each end a control part.  The broker matches two nominations and relays
 *     Proposal (C), Accept = S grants direction 0 (S), Confirm = C grants direction 1 (C), Decline (either).
 * Timeouts may strike at any moment; any registration or attach may fail, the server's after Confirm too; the broker may
 * die at every step and is restarted empty: what was on its way is lost, what it had passed on arrives late, and the ends
 * nominate again (A attempts each) in the same DMBs.
 *   grant     under the receive lock, with no reader inside a kernel call: prod = {g, 0}, cons = {g, 0}, g fresh; from here
 *             the reader bounds its recv() and watches start
 *   switch    with the token: prod must be {g, 0} without STOP; start = {g, TCP byte}; each publish is a
 *             compare-and-swap on prod that compares g; a publish that fails goes out by TCP
 *   un-grant  STOP by compare-and-swap from exactly {g, 0}: won = the lane is empty for ever and the reader may block in
 *             an unbounded recv() again; lost = the lane is open and is drained as usual, so what tells of its bytes (the link
 *             group) stays, although the handshake is over
 *
 * Checked: every byte once and in order; EOF only after the last one; nobody who waits for an answer
 * waits for ever: so both ends of a direction are on the lane, or both on TCP.
 *
 * run:  spin -a handshake.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m1000000 -w26
 *       DIR: 0, 1; FATE: 0 nobody dies, 1 either end may be killed anywhere
 * Must FAIL:
 *   UNGRANT_LOOK  un-grant looks at prod, then sets STOP without comparing
 *   UNGRANT_FLAG  un-grant is only a flag of the receiver's own
 *   KERNEL_RECV   the reader blocks in an unbounded recv() while a grant stands
 *   GRANT_IN_RECV a grant is made while the reader is inside such a recv()
 *   NOGEN         no generation is compared: a grant of an older handshake is used after a restart (with A=2)
 *   NO_FALLBACK   a publish that finds STOP counts its byte as sent
 *   LOOK_ONCE     EOF reported without a second look at prod
 *   PARTED        a handshake that ends takes the connection off its link group, also where un-grant was lost
 */
#ifndef N
#define N 2                  /* bytes to send */
#endif
#ifndef A
#define A 2                  /* nominations of each end */
#endif
#ifndef DIR
#define DIR 0                /* the direction that carries bytes */
#endif
#ifndef FATE
#define FATE 0
#endif
#define CLIENT 0
#define SERVER 1

mtype = { MATCHED, PROP, ACC, CONF, DECL };
chan toE[2] = [2] of { mtype, byte };        /* broker -> end */
bool nom[2];                                 /* nominations that the broker holds */
bool quit[2];                                /* control part is done: looks at no message any more */

chan tcp[2] = [N] of { byte };
byte tcpW[2], tcpR[2]; bool fin[2];
byte data[N];                                /* the ring */
byte Pg[2], Po[2]; bool Pend[2], Pstop[2];   /* prod */
byte Co[2];                                  /* cons */
byte Sg[2], So[2];                           /* start */

byte tok[2];                 /* sender: generation of the token it was given */
bool lane[2];                /* sender: on its lane (or about to) */
byte grant[2];               /* receiver: the grant that stands */
bool ring[2];                /* receiver: reads the ring */
bool inrecv[2], lk[2];       /* reader inside an unbounded recv(); receive lock */
byte w[2], next[2];          /* written by the program, delivered to the program */
bool dead[2];
bool deaf[2];                /* nothing tells the reader of the lane's news any more */

#ifdef NOGEN
#define SAME(a, b) true
#else
#define SAME(a, b) ((a) == (b))
#endif
#ifdef NOGEN
#define STARTED(d) (grant[d] && Sg[d])
#else
#define STARTED(d) (grant[d] && Sg[d] == grant[d])
#endif

proctype Snd(byte d) {
  byte g, t; bool ok;
  {
    do
    :: d_step { g == 0 && w[d] < N -> tcp[d]!w[d]; tcpW[d]++; w[d]++ }
    :: d_step { g == 0 && tok[d] != 0 -> t = tok[d]; tok[d] = 0; lane[d] = 1 };
       if
       :: d_step { SAME(Pg[d], t) && Po[d] == 0 && !Pend[d] && !Pstop[d] -> skip };
          d_step { Sg[d] = t; So[d] = tcpW[d]; g = t; t = 0 }
       :: d_step { !(SAME(Pg[d], t) && Po[d] == 0 && !Pend[d] && !Pstop[d]) -> t = 0; lane[d] = 0 }
       fi
    :: g != 0 && w[d] < N ->
       data[w[d]] = w[d] + 1;
       d_step {
         if
         :: SAME(Pg[d], g) && !Pstop[d] -> Po[d]++; w[d]++
         :: else -> g = 0; lane[d] = 0;
#ifdef NO_FALLBACK
            w[d]++
#endif
         fi }
    :: d_step { g != 0 ->                    /* leaves in peace */
         if
         :: SAME(Pg[d], g) && !Pstop[d] -> Pend[d] = 1
         :: else
         fi;
         g = 0; lane[d] = 0 }
    :: w[d] > 0 -> (next[d] == w[d] || dead[1 - d])      /* waits for an answer to all it wrote */
    :: break                                             /* closes */
    od
  } unless { dead[d] };
  fin[d] = 1
}

#define TAKE_ALL do :: len(tcp[d]) > 0 -> tcp[d]?v; assert(v == next[d]); next[d]++; tcpR[d]++ :: else -> break od

proctype Rcv(byte d) {
  byte n, v, p; bool e, st, en;
  {
    skip;
loop:
    if
    /* no grant: the program's own unbounded recv() */
#ifdef KERNEL_RECV
    :: d_step { !ring[d] && !lk[d] -> inrecv[d] = 1 };
#else
    :: d_step { grant[d] == 0 && !lk[d] -> inrecv[d] = 1 };
#endif
       if
       :: d_step { len(tcp[d]) > 0 -> TAKE_ALL; v = 0; inrecv[d] = 0 }
       :: d_step { len(tcp[d]) == 0 && fin[d] -> inrecv[d] = 0 };
#ifdef KERNEL_RECV
          if :: grant[d] == 0 -> goto eof :: else fi
#else
          goto eof
#endif
       fi;
       goto loop
    /* a grant stands: SIOCINQ, then start, then a bounded recv(), all under the receive lock */
    :: d_step { grant[d] != 0 && !ring[d] && !lk[d] -> lk[d] = 1; n = len(tcp[d]); e = (fin[d] && n == 0) };
       st = STARTED(d);
       d_step {
         if
         :: st && So[d] == tcpR[d] -> ring[d] = 1; n = 0; e = 0
         :: st && So[d] != tcpR[d] && So[d] - tcpR[d] < n -> n = So[d] - tcpR[d]
         :: else
         fi;
         do
         :: n > 0 && len(tcp[d]) > 0 -> tcp[d]?v; assert(v == next[d]); next[d]++; tcpR[d]++; n--
         :: else -> break
         od;
         v = 0; n = 0; st = 0; lk[d] = 0 };
       if :: e -> goto eof :: !e fi;
       (len(tcp[d]) > 0 || fin[d] || grant[d] == 0 || ring[d] || (!deaf[d] && STARTED(d) && So[d] == tcpR[d]));
       goto loop
#ifdef LOOK_ONCE
    :: d_step { ring[d] && !lk[d] -> lk[d] = 1; p = Po[d]; en = (Pend[d] || Pstop[d]) };
       e = (fin[d] && len(tcp[d]) == 0);
#else
    :: d_step { ring[d] && !lk[d] -> lk[d] = 1; e = (fin[d] && len(tcp[d]) == 0) };
       d_step { p = Po[d]; en = (Pend[d] || Pstop[d]) };     /* one word, looked at after TCP's EOF was seen */
#endif
       if
       :: d_step { p > Co[d] ->              /* a ring cell says its position in the stream */
            v = data[next[d]]; assert(v == next[d] + 1); next[d]++; Co[d]++;
            lk[d] = 0; p = 0; v = 0; e = 0; en = 0 }
       :: d_step { p == Co[d] && en -> ring[d] = 0; grant[d] = 0; lk[d] = 0; p = 0; e = 0; en = 0 }
       :: d_step { p == Co[d] && !en && e -> lk[d] = 0 }; goto eof
       :: d_step { p == Co[d] && !en && !e -> lk[d] = 0; p = 0 };
          ((!deaf[d] && (Po[d] > Co[d] || Pend[d] || Pstop[d])) || !ring[d] || (fin[d] && len(tcp[d]) == 0))
       fi;
       goto loop
    fi;
eof:
    assert(next[d] == w[d])
  } unless { dead[1 - d] }
}

/* The broker: nobody waits for it, so all that its death can do is to lose messages, any of them, on their way to it or in
 * it; what it has passed on is read whenever the other end looks.  So there is no process for it. */
inline say(e, m, g) {
  if
  :: d_step { nfull(toE[1 - e]) && !quit[1 - e] -> toE[1 - e]!m, g }
  :: skip                                    /* lost */
  fi
}

inline match(told) {
  d_step {
    nom[0] = 0; nom[1] = 0;
    if :: (told & 1) && nfull(toE[0]) && !quit[0] -> toE[0]!MATCHED, 0 :: else fi;
    if :: (told & 2) && nfull(toE[1]) && !quit[1] -> toE[1]!MATCHED, 0 :: else fi }
}
inline nominate(e) {
  if
  :: nom[1 - e] -> match(3)
  :: nom[1 - e] -> match(1)                  /* died when only one of them was told */
  :: nom[1 - e] -> match(2)
  :: d_step { true -> nom[e] = 1; nom[1 - e] = 0 }       /* the first, or the first after a restart */
  :: skip                                    /* lost */
  fi
}

inline give(d) {             /* the receiver of direction d grants it */
#ifdef GRANT_IN_RECV
  d_step { !lk[d] ->
#else
  d_step { !lk[d] && !inrecv[d] ->
#endif
    Pg[d]++; Po[d] = 0; Pend[d] = 0; Pstop[d] = 0; Co[d] = 0; grant[d] = Pg[d]; h = Pg[d] }
}

inline ungrant(d) {
#ifdef UNGRANT_FLAG
  d_step { (!lk[d]) -> if :: Po[d] == 0 && !ring[d] -> grant[d] = 0 :: else fi };
#else
  h = grant[d];
#ifdef UNGRANT_LOOK
  d_step { ok = (h != 0 && Po[d] == 0 && !Pend[d]) };
  d_step { if :: ok -> Pstop[d] = 1 :: else fi };
#else
  d_step { if :: h != 0 && Po[d] == 0 && !Pend[d] && !Pstop[d] -> Pstop[d] = 1; ok = 1 :: else fi };
#endif
  d_step { (!lk[d]) ->
    if
    :: ok && grant[d] == h -> grant[d] = 0; ring[d] = 0
#ifdef PARTED
    :: !(ok && grant[d] == h) && grant[d] != 0 -> deaf[d] = 1
#endif
    :: else
    fi;
    ok = 0; h = 0 };
#endif
}

#define FREE(e) (grant[1 - (e)] == 0 && !lane[e] && tok[e] == 0)   /* nothing of an older handshake is in use here */

proctype Client() {
  byte g, h, n; bool ok;
  {
    skip;
idle:
    if
    :: n < A && FREE(CLIENT) -> n++; nominate(CLIENT)
    :: goto out
    fi;
wait_match:
    if
    :: toE[CLIENT]?MATCHED, _ -> say(CLIENT, PROP, 0)
    :: toE[CLIENT]?DECL, _ -> goto wait_match
    :: toE[CLIENT]?ACC, _ -> goto wait_match
    :: goto idle                                         /* timeout, or the session is lost */
    fi;
wait_accept:
    if
    :: toE[CLIENT]?ACC, g ->                             /* perhaps an older one, delivered late */
       if
       :: say(CLIENT, DECL, 0); g = 0; goto idle         /* attach or own registration failed */
       :: skip
       fi;
       if :: DIR == 0 -> tok[0] = g :: else fi; g = 0;
       if
       :: say(CLIENT, DECL, 0); goto idle                /* own registration failed, though already sending on the lane */
       :: grant[1] == 0 -> give(1)
       fi;
       say(CLIENT, CONF, h); h = 0
    :: toE[CLIENT]?MATCHED, _ -> goto wait_accept
    :: toE[CLIENT]?DECL, _ -> goto idle
    :: goto idle
    fi;
open:
    if
    :: toE[CLIENT]?DECL, _                               /* the server's attach failed */
    :: toE[CLIENT]?MATCHED, _ -> goto open
    :: toE[CLIENT]?ACC, _ -> goto open
    :: goto out
    :: skip                                              /* timeout */
    fi;
    ungrant(1);
    goto idle;
out: skip
  } unless { dead[CLIENT] };
  skip;
  d_step { quit[CLIENT] = 1; g = 0; h = 0; n = 0; ok = 0; do :: nempty(toE[CLIENT]) -> toE[CLIENT]?_, _ :: else -> break od; skip }
}

proctype Server() {
  byte g, h, n; bool ok;
  {
    skip;
idle:
    if
    :: n < A && FREE(SERVER) -> n++; nominate(SERVER)
    :: goto out
    fi;
wait_proposal:
    if
    :: toE[SERVER]?MATCHED, _ -> goto wait_proposal
    :: toE[SERVER]?CONF, _ -> goto wait_proposal
    :: toE[SERVER]?DECL, _ -> goto wait_proposal
    :: toE[SERVER]?PROP, _ ->
       if
       :: say(SERVER, DECL, 0); goto idle                /* registration failed */
       :: give(0)
       fi;
       say(SERVER, ACC, h); h = 0
    :: goto idle
    fi;
wait_confirm:
    if
    :: toE[SERVER]?CONF, g ->
       if
       :: d_step { true -> if :: DIR == 1 -> tok[1] = g :: else fi; g = 0 }; goto open
       :: say(SERVER, DECL, 0); g = 0                    /* attach failed after Confirm */
       fi
    :: toE[SERVER]?MATCHED, _ -> goto wait_confirm
    :: toE[SERVER]?PROP, _ -> goto wait_confirm
    :: toE[SERVER]?DECL, _
    :: skip                                              /* timeout */
    fi;
    ungrant(0);
    goto idle;
open:
    if
    :: goto out
    :: ungrant(0); goto idle                             /* the client never came */
    fi;
out: skip
  } unless { dead[SERVER] };
  skip;
  d_step { quit[SERVER] = 1; g = 0; h = 0; n = 0; ok = 0; do :: nempty(toE[SERVER]) -> toE[SERVER]?_, _ :: else -> break od; skip }
}

proctype Fate() {
  if
#if FATE
  :: dead[CLIENT] = 1
  :: dead[SERVER] = 1
#endif
  :: skip
  fi
}

init { atomic { run Snd(DIR); run Rcv(DIR); run Client(); run Server(); run Fate() } }
