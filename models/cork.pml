/*
 * Held: a sender publishes bytes that the reader overlooks until a time, and nobody rings when it comes (crates/core/src/cork.rs).
 *
 * A sender corks PARTS parts, one after the other, at any time. A reader looks, declares a sleep, looks again, asks for how long it
 * may sleep, and sleeps until it is rung or for so long. Time is over at any moment, for both at once. Memory is in order here: what
 * the order of a publish and a declaration rests on is wake.pml's.
 *
 * Shown: the reader never sleeps for ever with bytes unread that are not held any more (nothing can happen any more, and not all is read).
 *
 *   spin -a [-D...] cork.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Rules that can be broken, each of which must fail:
 *   -DEXPIRED     what is held no more when the reader asks gives no time: it may have been held at the look
 *   -DQUIET       a sender that adds to what it holds rings nobody, though the time was over before it had published
 */
#ifndef PARTS
#define PARTS 2
#endif
#define FOREVER 2

byte prod, from;                /* published; the first part that is held, of those */
bool held, over;                /* something is held; its time is over */
byte seen, read;                /* the reader was shown so many, and has read them */
bool declared, bell;
byte sleeps = 0;                /* 1: until the time, FOREVER */

#define shown (held && !over -> (from > seen -> from : seen) : prod)

inline publish() {
    bool adds, quiet;
    /* hold: with a time of its own, or that of what is held. */
    atomic { adds = held && !over; if :: !adds -> from = prod; held = true; over = false :: else fi }
    prod++;
    quiet = adds;
#ifndef QUIET
    if :: quiet && over -> quiet = false :: else fi;
#endif
    if
    :: !quiet && declared -> declared = false; bell = true
    :: else
    fi
}

active proctype Sender() {
    do
    :: prod < PARTS -> publish()
    :: prod == PARTS -> break
    od
}

/* It is over once for each time that begins. */
active proctype Clock() {
end:
    do
    :: atomic { held && !over -> over = true }
    od
}

active proctype Reader() {
    byte bound, at;
    do
    :: read == PARTS -> break
    :: else ->
        /* A look under the lock: what is shown is read. */
        atomic { seen = shown; read = seen };
        if
        :: read == PARTS -> break
        :: else
        fi;
        declared = true;
        if
        :: atomic { shown > read -> at = 0 }
        :: atomic { shown <= read -> at = 1 }
        fi;
        if
        :: at == 0 -> goto again
        :: else
        fi;
        /* The producer's word first, then what is held. */
        atomic { at = prod };
        bound = FOREVER;
        if
        :: at > seen ->
#ifdef EXPIRED
            atomic { bound = (held && !over -> 1 : FOREVER) }
#else
            atomic { bound = (held && !over -> 1 : 0) }
#endif
        :: else
        fi;
        if
        :: bound == 0
        :: bound == 1 -> atomic { bell || over || !held -> bell = false }
        :: bound == FOREVER -> atomic { bell -> bell = false }
        fi;
again:  skip
    od;
    assert(read == PARTS)
}
