/*
 * Move: a lane that begins in a first ring goes on behind the header, comes back, goes again (core's `window`, shm's `Window`).
 *
 * One direction. The window's word is one word; the sender has a private copy. Byte values are stream positions. Each step is one access
 * to shared memory. The sender may be killed once, anywhere; who has its lock then goes on by what stands in the shared words. Or it takes
 * back what is unread, at any point between two writes, and pays it by TCP from where it lies. What the word says of the offset X has M values.
 *
 * Shown: the reader gets each byte once, in order; what is taken back is what was sent; nothing that cannot be stands in the word; no end waits
 * for ever.
 *
 *   spin -a [-D...] move.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Rules that can be broken, each of which must fail:
 *   -DLATE        the window is said after the first byte that is by it was published
 *   -DLOOKFIRST   the reader looks at the window before it looks at what is published
 *   -DUNSAID      the sender goes on behind the header though bytes in the first ring are unread, and does not say from where on
 *   -DBLIND       ... and says that the first ring is read when it is not
 *   -DNEVER       ... and never says that it is, so that X comes round again
 *   -DBACK        it comes back to the first ring while bytes are unread
 *   -DANYWHERE    it doubles the window wherever it is
 *   -DPRIVATE     who inherits the lock goes on by the private copy
 */
#ifndef N
#define N 11
#endif
#define F 2                     /* cells of the first ring */
#define R 2                     /* ... of the least window behind the header, and of what it doubles to */
#define M 8                     /* values of X */

#define FIRST 0
#define BEHIND 1
#define MOVES 2

byte first[F], ring[2 * R];
byte prod, cons;
bool taken;
byte wkind, wsize = F, wx;      /* the window's word */
byte pkind, psize = F, px;      /* the sender's own copy; px is a whole offset */
bool killed, over;

#define base(c) ((pkind == MOVES && px > (c)) -> px : (c))
#define cell(kind, x, size, o) ((kind == FIRST || (kind == MOVES && (o) < x)) -> first[(o) % F] : ring[(o) % size])

/* The shared word, then the private copy: it may die in between. */
inline say(kind, size, x) {
#ifndef LATE
    d_step { wkind = kind; wsize = size; wx = (x) % M };
#endif
    die();
    d_step { pkind = kind; psize = size; px = x }
}

inline die() {
    if
    :: !killed -> killed = true; goto heir
    :: true
    fi
}

active proctype Sender() {
    byte at, c;
    goto next;
heir:   skip;
    atomic {
        at = prod;
#ifndef PRIVATE
        pkind = wkind; psize = wsize;
        px = (wkind == MOVES -> at - ((at + M - wx) % M) : 0);
#endif
        c = 0
    };
next:
    do
    :: at == N -> break
    :: at < N ->
        c = cons;
        if
#ifndef NEVER
#ifdef BLIND
        :: pkind == MOVES -> say(BEHIND, psize, 0)
#else
        :: pkind == MOVES && c >= px -> say(BEHIND, psize, 0)
#endif
#endif
#ifdef BACK
        :: pkind == BEHIND -> say(FIRST, F, 0)
#else
        :: pkind == BEHIND && c == at -> say(FIRST, F, 0)
#endif
#ifdef UNSAID
        :: pkind == FIRST -> say(BEHIND, R, 0)
#else
        :: pkind == FIRST && c == at -> say(BEHIND, R, 0)
        :: pkind == FIRST && c != at -> say(MOVES, R, at)
#endif
#ifdef ANYWHERE
        :: pkind != FIRST && psize == R -> say(pkind, 2 * R, px)
#else
        :: pkind != FIRST && psize == R && (base(c) == at || ((base(c) / R) % 2 == 0 && (at - 1) / R == base(c) / R)) ->
            say(pkind, 2 * R, px)
#endif
        /* What is in the first ring is read when the sender looks next, if it can be: it looks at each write. */
        :: (pkind != MOVES || c < px) && at - base(c) < psize ->
put:        if
            :: pkind == FIRST -> first[at % F] = at
            :: else -> ring[at % psize] = at
            fi;
            die();
            prod = at + 1;
#ifdef LATE
            d_step { wkind = pkind; wsize = psize; wx = px % M };
#endif
            at++;
            die()
#ifdef NEVER
        :: pkind == MOVES && c >= px && at - base(c) < psize -> goto put
#endif
        /* Room comes. */
        :: pkind != FIRST && (pkind != MOVES || c < px) && at - base(c) == psize && cons != c -> skip
        :: atomic { true -> taken = true; c = cons };
            do
            :: c < at -> assert(cell(pkind, px, psize, c) == c); c++
            :: else -> break
            od;
            break
        fi
    od;
    over = true
}

active proctype Reader() {
    byte cur, to, kind, size, x, i, ahead;
    do
    :: taken || cur == N -> break
    :: prod > cur || taken ->
#ifdef LOOKFIRST
        d_step { kind = wkind; size = wsize; x = wx };
        to = prod;
#else
        to = prod;
        d_step { kind = wkind; size = wsize; x = wx };
#endif
        if
        :: kind == MOVES ->
            ahead = (x + M - cur % M) % M;
            ahead = (ahead > M / 2 -> 0 : ahead);
            assert(taken || ahead <= F);
            x = cur + ahead
        :: else -> x = 0; ahead = 0
        fi;
        assert(taken || to - cur <= size + ahead);
        i = cur;
        do
        :: i < to -> assert(taken || cell(kind, x, size, i) == i); i++
        :: else -> break
        od;
        /* Read, unless it was taken back. */
        atomic {
            if
            :: !taken -> cons = to; cur = to
            :: else
            fi
        }
    od
}
