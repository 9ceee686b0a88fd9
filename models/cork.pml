/*
 * Held: a sender publishes bytes that the reader overlooks until a time, and nobody rings when it comes (crates/core/src/cork.rs).
 *
 * A sender corks PARTS parts, one after the other, at any time; one may fill a segment, which is not held. A reader looks, declares a
 * sleep, asks for how long it may sleep, looks again, and sleeps until it is rung or for so long. Another one looks and does not read.
 * Time is over at any moment, for all at once. Memory is in order here: what the order of a publish and a declaration rests on is wake.pml's.
 *
 * Shown: the reader never sleeps for ever with bytes unread that are not held any more (nothing can happen any more, and not all is read).
 *
 *   spin -a [-D...] cork.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Rules that can be broken, each of which must fail:
 *   -DAFTER       the reader asks for its time after its last look: the other one may have been shown meanwhile what that look overlooked
 *   -DTIME        a sender takes a time that is not over for something held, though a segment was complete and was read
 *   -DQUIET       a sender that adds to what it holds rings nobody, though the time was over before it had published
 */
#ifndef PARTS
#define PARTS 3
#endif
#define FOREVER 2

byte prod, from;                /* published; the first part that is held, of those */
bool held, over;                /* a time was written down; it is over */
byte seen, read;                /* readers were shown so many; the one has read them */
bool declared, bell;

#define hidden_from (from > seen -> from : seen)
#define shown (held && !over && hidden_from < prod -> hidden_from : prod)

inline publish() {
    bool quiet;
    atomic {
#ifdef TIME
        quiet = held && !over;
#else
        quiet = held && !over && from < prod && read < prod;
#endif
        if
        :: !quiet -> from = prod; held = true; over = false
        :: else
        fi;
        if
        :: true
        :: from = prod + 1; over = false; quiet = false
        fi
    }
    prod++;
#ifndef QUIET
    if
    :: quiet && over -> quiet = false
    :: else
    fi;
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

active proctype Other() {
end:
    do
    :: atomic { seen < shown -> seen = shown }
    od
}

/* The producer's word first, then what is held. */
inline ask() {
    at = prod;
    bound = FOREVER;
    if
    :: at > seen -> bound = (held && !over -> 1 : 0)
    :: else
    fi
}

active proctype Reader() {
    byte bound, at;
    bool news;
    do
    :: read == PARTS -> break
    :: else ->
        /* A look under the lock: what is shown is read. */
        atomic { seen = shown; read = seen };
        declared = true;
#ifndef AFTER
        ask();
#endif
        atomic { news = shown > read };
        if
        :: !news ->
#ifdef AFTER
            ask();
#endif
            if
            :: bound == 0 || read == PARTS
            :: bound == 1 && read < PARTS -> atomic { bell || over -> bell = false }
            :: bound == FOREVER && read < PARTS -> atomic { bell -> bell = false }
            fi
        :: else
        fi
    od
}
