/* fabric.pml - the end of a stream, and death, between two hosts: one direction of a connection, TCP beside two links of a fabric.
 *
 * Program A - ring of A - agent A = links 0 and 1 = ring of B (agent B publishes what has come) - program B.  Byte values are stream positions.
 * A write that is posted lands some time later, or never once its link is cut; a cut is told to each end in its own time.  After both links
 * the connection goes on by TCP.  Program A may close at any byte (or die: the same); program B may leave before the end, and its ring is used
 * again; links may be cut at any step; one agent may be killed at any step, and starts again with what the rings' words say.
 * The socket of program A is held by its host's broker, too: so FIN goes out when agent A says so.  Lanes of one host have no such holder, as
 * it hides a program's death (docs/decisions.md); here the death is known by the lane to the agent, and FIN would overtake what it left.
 *
 * Shown: program B reads each byte once, in order, whatever is cut and whoever dies; it is told the end after the last byte, and always; no
 * write lands in a ring that is used again.
 *
 * -DLEAVES: program B may leave.  -DDEATHS=1: an agent may be killed.
 *
 * run:  spin -a fabric.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m1000000
 * Must FAIL:
 *   NOFENCE       agent A goes on over the other link before agent B has said that it has closed the first (B leaves out what comes twice)
 *   SPEAK_FIRST   agent B says what has come, and closes its end then
 *   FREE_EARLY    the ring of A is free for new bytes when they are posted, not when they are read
 *   FIN_EARLY     FIN goes out when program A closes
 *   LOOK_ONCE     program B reports the end that TCP says without a second look at the ring
 *   GUESS         with DEATHS=1: agent A goes on from what it knows to be read, not from what agent B says
 *   AGAIN        with DEATHS=1: agent A forgets what is on TCP already
 *   REUSE_EARLY   with LEAVES: the ring of B is used again when program B leaves
 *   ANSWER_ASIDE  with LEAVES: agent A says that it writes no more beside the link, not through it
 *   FORGET        with LEAVES: the answer goes through the link, and is not said again when the link is cut
 */
#ifndef N
#define N 3                  /* bytes */
#endif
#ifndef DEATHS
#define DEATHS 0             /* agents that may be killed */
#endif
#ifndef CUTS
#define CUTS 2               /* links that may be cut */
#endif
#define R 2                  /* cells of a ring */
#define ANSWER 100
#define FIN 101
#define TCP 2                /* in place of a link */
#define NONE 3

mtype = { DEL, ASK, SYNC, HELLO, SAID };

chan wire0 = [R + 1] of { byte, byte };      /* posted: position, value */
chan wire1 = [R + 1] of { byte, byte };
chan imm0 = [R + 1] of { byte };             /* landed, and not yet looked at by agent B */
chan imm1 = [R + 1] of { byte };
chan toA = [6] of { mtype, byte, byte };     /* the brokers' connection */
chan toB = [6] of { mtype, byte, bool };
chan tcp = [N + 1] of { byte };

bool openA[2] = true, openB[2] = true, cut[2];
bool lost[2];                /* what is on its way over a link that was cut does not land any more */
byte ringA[R], ring[R];
byte p, cons, prod;          /* put in; read from the ring; published to program B */
bool closed, over, quit, reused;
byte deaths;

byte w, l;                   /* agent A: written up to; the link that it uses */
byte t;                      /* bytes that it has put on TCP: the socket counts them, whoever dies */
bool stop, answered[2], said;

#define ROOM (p - (l == TCP -> w : cons))

active proctype ProgramA() {
  do
#ifdef FREE_EARLY
  :: p < N && p - w < R -> atomic { ringA[p % R] = p; p++ }
#else
  :: p < N && ROOM < R -> atomic { ringA[p % R] = p; p++ }
#endif
  :: break
  od;
#ifdef FIN_EARLY
  tcp!FIN;
#endif
  closed = true
}

inline post(pos, val) {
  if :: l == 0 -> wire0!pos,val :: else -> wire1!pos,val fi
}

/* Agent A gives a link up: it closes its end and says so. */
inline give_up(k) {
  atomic { openA[k] = false; toB!DEL,k,answered[k] }
#ifdef NOFENCE
  ; atomic { if :: l == k -> w = prod; l = (openA[1 - k] -> 1 - k : TCP) :: else fi }
#endif
}

active proctype AgentA() {
  mtype what; byte k, s; bool waits;
end:
  do
  /* A write. */
  :: atomic { l < 2 && !stop && !waits && openA[l] && w < p && w - cons < R -> post(w, ringA[w % R]); w++ }
  :: atomic { l == TCP && !stop && !waits && w < p -> tcp!ringA[w % R]; w++; t++ }
  /* The end: all of it has come, or is on TCP. */
#ifndef FIN_EARLY
  :: atomic { closed && !said && !waits && (l == TCP && w == p || prod == p) -> tcp!FIN; said = true }
#endif
  :: l < 2 && !waits && openA[0] && cut[0] -> give_up(0)
  :: l < 2 && !waits && openA[1] && cut[1] -> give_up(1)
  /* DELETE RKEY is answered through the link, behind all writes. */
#ifdef ANSWER_ASIDE
  :: atomic { stop && !waits && !answered[0] && !answered[1] -> answered[0] = true; toB!SAID,0,true }
#else
  :: atomic { stop && !waits && l < 2 && openA[l] && !answered[0] && !answered[1] -> post(ANSWER, 0); answered[l] = true }
#endif
  :: atomic {
       toA?what,k,s ->
       if
       :: waits && what != SYNC       /* of the agent's last life */
       :: !waits && what == DEL ->
          if :: openA[k] -> openA[k] = false; toB!DEL,k,answered[k] :: else fi;
#ifndef NOFENCE
          if
          :: l == k -> w = s; l = (openA[1 - k] -> 1 - k : NONE)
          :: else
          fi;
          /* Both are gone at both ends. */
          if :: l == NONE && !openA[0] && !openA[1] && !openB[0] && !openB[1] -> l = TCP; w = s :: else fi
#else
          if :: l == k -> w = prod; l = (openA[1 - k] -> 1 - k : TCP) :: else fi
#endif
       :: !waits && what == ASK -> stop = true
       :: what == SYNC ->
          openA[0] = false; openA[1] = false; waits = false; l = TCP;
#if defined(GUESS)
          w = cons + t
#elif defined(AGAIN)
          w = s + 0 * t
#else
          w = s + t
#endif
       fi
     }
  /* It is killed, and starts again: its endpoints and what it knew are gone. */
  :: atomic {
       deaths < DEATHS && !said -> deaths++;
       openA[0] = false; openA[1] = false; w = 0; l = NONE;
       do :: toA?what,k,s :: empty(toA) -> break od;
       waits = true; toB!HELLO,0,false
     }
  od
}

inline land(k, imm) {
  if
  :: openB[k] && !lost[k] && pos == ANSWER -> imm!ANSWER
  :: openB[k] && !lost[k] && pos != ANSWER -> assert(!reused); ring[pos % R] = val; imm!pos
  :: else
  fi
}

active proctype Adapter0() {
  byte pos, val;
end:
  do
  :: atomic { wire0?pos,val -> land(0, imm0) }
  :: atomic { cut[0] && !lost[0] -> lost[0] = true }
  od
}

active proctype Adapter1() {
  byte pos, val;
end:
  do
  :: atomic { wire1?pos,val -> land(1, imm1) }
  :: atomic { cut[1] && !lost[1] -> lost[1] = true }
  od
}

active proctype Cutter() {
#if CUTS > 0
  if :: cut[0] = true :: true fi;
#endif
#if CUTS > 1
  if :: cut[1] = true :: true fi;
#endif
  skip
}

/* What a link's immediate says. */
inline take(pos) {
  if
  :: pos == ANSWER -> reused = true
#ifdef NOFENCE
  :: pos != ANSWER && pos < prod
#endif
  :: else -> assert(pos == prod); prod = pos + 1
  fi
}

/* Agent B closes its end: what it has not looked at is as if it had not come. */
inline close_end(k) {
  openB[k] = false;
  if
  :: k == 0 -> do :: imm0?pos :: empty(imm0) -> break od
  :: else -> do :: imm1?pos :: empty(imm1) -> break od
  fi
}

inline give_up_too(k) {
#ifdef SPEAK_FIRST
  toA!DEL,k,prod;
  do
  :: k == 0 && nempty(imm0) -> atomic { imm0?pos; take(pos) }
  :: k == 1 && nempty(imm1) -> atomic { imm1?pos; take(pos) }
  :: atomic { close_end(k); break }
  od
#else
  atomic { close_end(k); toA!DEL,k,prod }
#endif
}

active proctype AgentB() {
  mtype what; byte k, pos; bool a, asked;
end:
  do
  :: atomic { nempty(imm0) -> imm0?pos; take(pos) }
  :: atomic { nempty(imm1) -> imm1?pos; take(pos) }
  :: openB[0] && cut[0] -> give_up_too(0)
  :: openB[1] && cut[1] -> give_up_too(1)
  :: toB?what,k,a ->
     if
     :: what == DEL ->
        if :: openB[k] -> give_up_too(k) :: else fi;
#ifndef FORGET
        /* Neither end has that link, and the peer writes no more. */
        if :: a -> reused = true :: else fi
#endif
     :: what == SAID -> reused = true
     :: what == HELLO ->
        atomic { close_end(0); close_end(1); toA!SYNC,0,prod; over = true }
     fi
  /* From there on the stream is on TCP. */
  :: atomic { !over && !openB[0] && !openB[1] -> over = true }
#ifdef REUSE_EARLY
  :: atomic { quit && !reused -> reused = true }
#else
  :: atomic { quit && !asked -> asked = true; toA!ASK,0,0 }
  :: atomic { quit && over && !reused -> reused = true }
#endif
  /* It is killed, and starts again with what the ring's words say. */
  :: atomic {
       deaths < DEATHS -> deaths++;
       close_end(0); close_end(1);
       do :: toB?what,k,a :: empty(toB) -> break od;
       over = true; toA!SYNC,0,prod
     }
  od
}

active proctype ProgramB() {
  byte r, x;
  do
  :: cons < prod -> atomic { assert(ring[cons % R] == r); r++; cons++ }
  :: over && cons == prod && nempty(tcp) && !tcp?[FIN] -> atomic { tcp?x; assert(x == r); r++ }
  /* Nothing in the ring; then TCP is asked, which may say the end by then. */
  :: cons == prod ->
     if
#ifdef LOOK_ONCE
     :: tcp?[FIN] -> break
#else
     :: tcp?[FIN] -> if :: cons < prod :: cons == prod -> break fi
#endif
     :: !tcp?[FIN] && (cons < prod || nempty(tcp) || over)
     fi
#ifdef LEAVES
  /* It leaves, and its ring is to be used again. */
  :: quit = true; goto left
#endif
  od;
  assert(closed && r == p);
left:
  /* Its ring comes back. */
  if :: quit -> reused -> skip :: else fi
}
