/*
 * Room: what a program that waits for it by edges is told, while its writes go by TCP, by a ring, by TCP again.
 *
 * One direction, one registration for edges of OUT. A writer writes PIECE units at a time until a write is refused or cut short, and
 * goes on when it is told of room. It waits itself, or (with -DOTHER) another thread does, which sleeps already while the writer writes. The
 * reader frees one unit at a time. How a reader is told of bytes is edges.pml's; how a sleeper is rung, cq.pml's.
 *
 * Shown: the writer is never left waiting (nothing can happen any more, and it has not written all).
 *
 *   spin -a [-D...] room.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Rules that can be broken, each of which must fail:
 *   -DDEAF        a write that TCP cuts short while the lane opens makes no room in the ring an edge
 *   -DASKED       ... only where the socket still shows no room after the call: the reader may be faster
 *   -DQUIET       ... and the sets that wait for it are not told (-DOTHER: that thread has looked before)
 *   -DUNARMED     a sleeper declares no wait for room
 */
#ifndef N
#define N 7
#endif
#define PIECE 2
#define BUFFER 2                /* units that TCP takes, and the ring */
#define LANES 2
#define WRITABLE(used) (BUFFER - used >= 1)

bool onlane, registered;        /* where the sender writes; the connection is in a link, and its registration ours */
byte tcp, ring;                 /* units on their way */
bool nospace;                   /* SOCK_NOSPACE: the kernel tells of room when there is some */
bool kev;                       /* the kernel has an event of the registration to tell */
bool edge, has_known, known;    /* not told yet; what TCP showed when our entry was made */
byte starved, seen;
bool armed, bell;               /* a wait for room is declared; the set is rung */
byte sent, lanes;
bool goes = true;               /* the writer has been told of room */
bool asleep;

#define room (onlane -> WRITABLE(ring) : WRITABLE(tcp))
#define free (BUFFER - (onlane -> ring : tcp))

inline take_over() {
    known = WRITABLE(tcp); has_known = true;
    edge = kev || !known;
    seen = starved;
    kev = true;                 /* as any entry that is changed, where there is room; without, nospace is set by the look */
    if
    :: !WRITABLE(tcp) -> kev = false; nospace = true
    :: else
    fi;
    registered = true; bell = true
}

active proctype Lanes() {
    do
    :: atomic { !registered && !onlane && lanes < LANES -> lanes++; take_over() }
    /* At a call of the sender's, with no thread inside the kernel: any moment here. */
    :: atomic { registered && !onlane && ring == 0 -> onlane = true; bell = true }
    /* The lane is over, and all of it was read: the registration is the kernel's again, which tells of what stands. */
    :: atomic { registered && onlane && ring == 0 -> onlane = false; registered = false; has_known = false;
        if
        :: WRITABLE(tcp) -> kev = true
        :: else -> nospace = true
        fi;
        bell = true }
    :: break                    /* nobody may count on what comes next */
    od
}

active proctype Reader() {
    do
    :: atomic { tcp > 0 ->
        tcp--;
        if
        :: nospace -> nospace = false; kev = true
        :: else
        fi }
    :: atomic { ring > 0 ->
        ring--;
        if
        :: armed -> armed = false; bell = true
        :: else
        fi }
    :: sent == N && tcp == 0 && ring == 0 -> break
    od
}

/* A look at the set, and what it tells. */
inline look() {
    atomic {
        if
        :: kev && registered ->
            edge = edge || !has_known || known != WRITABLE(tcp);
            has_known = false; kev = false
        :: kev && !registered && WRITABLE(tcp) -> kev = false; goes = true
        :: else -> kev = false
        fi;
        if
        :: registered && room && (edge || starved != seen) -> edge = false; seen = starved; goes = true
        :: else
        fi
    }
}

inline lie_down() {
    atomic {
        bell = false;
#ifndef UNARMED
        armed = registered && onlane && (starved != seen || edge);
#endif
        /* Looked at once more, armed. */
        if
        :: registered && room && (edge || starved != seen) -> skip
        :: else -> asleep = true
        fi
    }
}

active proctype Writer() {
    byte n, wish;
    bool counts, by_tcp, was_short;
    do
    :: sent == N -> break
    :: sent < N ->
        atomic {
            wish = (N - sent < PIECE -> N - sent : PIECE);
            n = (free < wish -> free : wish);
            by_tcp = !onlane; was_short = n < wish;
            if
            :: onlane -> ring = ring + n
            :: else ->
                tcp = tcp + n;
                if
                :: was_short -> nospace = true
                :: else
                fi
            fi;
            sent = sent + n;
            if
            :: was_short -> goes = false
            :: else
            fi
        }
        /* After the call, which others may come between. */
        atomic {
#ifdef ASKED
            counts = registered && (!by_tcp || !WRITABLE(tcp));
#else
            counts = registered;
#endif
#ifdef DEAF
            counts = counts && !by_tcp;
#endif
            if
            :: was_short && counts ->
                starved = 1 - seen;     /* a count: that it differs from what was told is all that is looked at */
#ifndef QUIET
                bell = true
#endif
            :: else
            fi
        }
#ifdef OTHER
        if
        :: goes || !was_short
        :: sent == N
        fi
#else
        do
        :: goes || !was_short -> break
        :: !goes && was_short -> look();
            if
            :: !goes ->
                lie_down();
                if
                :: atomic { asleep && (kev || bell) -> asleep = false }
                :: !asleep
                fi
            :: else
            fi
        od
#endif
    od
}

#ifdef OTHER
active proctype Waiter() {
    do
    :: look(); lie_down();
end:    if
        :: atomic { asleep && (kev || bell) -> asleep = false }
        :: !asleep
        fi
    od
}
#endif
