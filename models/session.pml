/* session.pml - what a process says to the broker while the session's socket may be full, and nobody waits.
 *
 * The program says M messages in turn, at its calls: say() = if the outbox is empty and the socket has room, into the
 * socket; else into the outbox.  A pump (any call, or a sleeping call that wakes) reads the broker's answers and moves what the
 * outbox holds into the socket, as far as there is room.  Between its calls the program goes to sleep in a call of its own,
 * for as long as nothing wakes it: the session's socket is readable, or, where the outbox holds something at that moment,
 * writable.  The broker takes at most T messages in a turn; it may be stopped at any moment for any time.  It answers the last
 * one only: most of what it is told (endings, steps for the peer) has no answer.
 *
 * Checked: every message arrives, once and in order; the answer is read; nothing sleeps for ever (invalid end states).
 *
 * run:  spin -a session.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 * Must FAIL:
 *   DROP       a message that meets a full socket is dropped (what the code did: handshakes ended in confirm_timeout)
 *   JUMP       a message is tried at the socket while others wait in the outbox
 *   NOROOM     a sleeping call watches for answers only
 *   HALF       a pump that could not send all forgets the rest's turn: it drops the message it was about to send
 */
#ifndef M
#define M 6                  /* messages */
#endif
#ifndef S
#define S 2                  /* the socket's room */
#endif
#ifndef T
#define T 2                  /* messages of a broker's turn */
#endif

chan socket = [S] of { byte };
chan answers = [1] of { byte };
chan outbox = [M] of { byte };
byte arrived;
bool heard;

inline flush() {
  do
  :: nempty(outbox) && nfull(socket) -> outbox ? message; socket ! message
#ifdef HALF
  :: nempty(outbox) && full(socket) -> outbox ? message; break
#endif
  :: empty(outbox) || full(socket) -> break
  od
}

inline pump() {
  do
  :: nempty(answers) -> answers ? message; heard = true
  :: empty(answers) -> break
  od;
  flush()
}

proctype Program() {
  byte said, message;
  bool watches_room;
  do
  :: said < M ->                       /* a call that says something */
     pump();
     atomic {
       if
#ifdef JUMP
       :: nfull(socket) -> socket ! said
       :: full(socket) -> outbox ! said
#elif defined(DROP)
       :: nfull(socket) -> socket ! said
       :: full(socket) -> skip
#else
       :: empty(outbox) && nfull(socket) -> socket ! said
       :: nempty(outbox) || full(socket) -> outbox ! said
#endif
       fi;
       said++
     }
  :: !heard && (said == M || nempty(outbox)) ->   /* a call that sleeps */
     watches_room = nempty(outbox);
#ifdef NOROOM
     watches_room = false;
#endif
     (nempty(answers) || (watches_room && nfull(socket)));
     pump()
  :: heard -> break
  od
}

proctype Broker() {
  byte message, taken;
  do
  :: nempty(socket) ->                 /* a turn; before and after it any time may pass */
     taken = 0;
     do
     :: taken < T && nempty(socket) ->
        socket ? message;
        assert(message == arrived);
        arrived++;
        taken++;
        if
        :: message == M - 1 -> answers ! message
        :: else
        fi
     :: taken == T || empty(socket) -> break
     od
  :: arrived == M -> break
  od
}

init { atomic { run Program(); run Broker() } }
