/*
 * Edges: what a program that waits by epoll is told of a connection whose bytes come by TCP, by a ring, by TCP again, by a second ring.
 *
 * One direction, one registration for IN|OUT, one thread. Every byte that comes is an edge, as on TCP, and nothing else is: not that a
 * lane opens or closes, nor that the reader goes from one way to the other. How a sleeper is woken is cq.pml's and wake.pml's; here a
 * wait ends as soon as a look would be made.
 *
 * The program reads until a read is short, and takes that for the end of what is there (nginx), or reads byte by byte to EAGAIN.
 *
 * Shown: no edge is lost (when nothing more happens, all has been read), and none is one too many (each report follows a byte that came
 * since the last one). For edges; with -DLEVEL for levels, with -DONESHOT for one-shots that are armed again after each read, and with
 * -DEXCL for exclusive edges, where the end of a lane may be told of once more (COMPLIANCE.md).
 *
 *   spin -a [-D...] edges.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Rules that can be broken, each of which must fail:
 *   -DNOCROSS     a read ends where one part of the stream does, though the program was told of both
 *   -DKEEPSEEN    what was told of one ring holds for the next one
 *   -DDEAF        TCP's edges do not count while the lane is open
 *   -DANYWAY      a lane that opens is an edge
 *   -DBLINDMOD    the first event of our entry in the kernel is taken for news
 *   -DRESTORE     the program's entry is made again at once when a lane is over
 */
#ifndef N
#define N 4
#endif
#ifndef LANES
#define LANES 2
#endif

mtype:way = { PLAIN, GRANTED, ONLANE, DEBT };
mtype:way rx = PLAIN;
bool txlane, owing;             /* the sender is on its lane; it has taken back and not resent */
bool started, over, taken;      /* start word; END or STOP; TAKEN */
bool stop;
byte sent, got;                 /* bytes of the stream: sent, read */
byte tcpsent, tcpread, start, debt_end;
byte ring, ringread;            /* bytes of this lane: published, read */
byte lanes;
bool kev;                       /* the kernel has an event for the registration */
bool managed, lingers, edge, has_known;
byte known, seen;
bool news;                      /* ghost: a byte came since the last report */
bool is_done;

#define tcpq     (tcpsent - tcpread)
#define produced ((rx == GRANTED || rx == ONLANE) -> ring : 0)
#define fresh    (produced > seen)
#define hasnews  ((rx == GRANTED && started && start == tcpread) || (rx == ONLANE && (ring != ringread || over || taken)))
#define changes  (rx != ONLANE || ring == ringread)
#ifdef LEVEL
#define changed  (managed && hasnews)
#else
#define changed  (managed && hasnews && (fresh || changes))
#endif
/* What a read would get now. */
#define readable ((rx == PLAIN && tcpq > 0) || (rx == GRANTED && (tcpq > 0 && (!started || start > tcpread))) \
                  || (rx == ONLANE && ring > ringread && !taken) || (rx == DEBT && tcpq > 0))

inline modify() {               /* EPOLL_CTL_MOD: the kernel tells of what stands, room for one */
#if defined(LEVEL) || defined(ONESHOT)
    kev = tcpq > 0
#else
    kev = true
#endif
}

inline take_over() {
    if
    :: lingers && has_known -> edge = (known != tcpread + tcpq)   /* what the set has to tell is our own entry still */
    :: else -> edge = kev                                         /* what it has to tell was not told */
    fi;
    known = tcpread + tcpq; has_known = true;
#ifdef ANYWAY
    edge = true;
#endif
#ifndef KEEPSEEN
    seen = 0;
#endif
    modify(); kev = true;       /* our entry is for room, too */
    managed = true; lingers = false
}

/* The lane is over: the registration is the kernel's again. */
inline settle() {
    if
    :: rx == PLAIN && managed ->
        managed = false;
#if defined(EXCL) || defined(LEVEL) || defined(ONESHOT)
        modify(); has_known = false; news = true
#elif defined(RESTORE)
        modify(); has_known = false
#else
        if
        :: edge -> modify(); has_known = false
        :: else -> lingers = true
        fi
#endif
    :: else
    fi
}

/* The changes of mode that a look or a read makes. */
inline advance() {
    if
    :: rx == GRANTED && started && start == tcpread -> rx = ONLANE
    :: else
    fi;
    if
    :: rx == ONLANE && taken -> debt_end = tcpread + ring - ringread; rx = DEBT
    :: rx == ONLANE && !taken && over && ring == ringread -> rx = PLAIN
    :: else
    fi;
    if
    :: rx == DEBT && tcpread == debt_end -> rx = PLAIN
    :: else
    fi
}

/* One byte of the part that is next, if it is there. */
inline take_byte() {
    if
    :: rx == ONLANE && ring > ringread -> ringread++; got++; n++
    :: rx != ONLANE && tcpq > 0 && !(rx == GRANTED && started && tcpread == start) -> tcpread++; got++; n++
    fi
}

active proctype Sender() {
    do
    :: atomic { sent < N && !txlane && !owing -> tcpsent++; sent++; kev = true; news = true }
    :: atomic { sent < N && txlane && !stop -> ring++; sent++; news = true }
    :: atomic { rx == GRANTED && !started && !txlane && !owing && !stop -> started = true; start = tcpsent; txlane = true }
    :: atomic { txlane && stop -> txlane = false }
    :: atomic { txlane && !stop -> over = true; txlane = false }
    :: atomic { txlane && ring > ringread -> over = true; taken = true; txlane = false; owing = true }
    :: atomic { owing -> tcpsent = tcpsent + ring - ringread; kev = true; news = true; owing = false }
    :: atomic { sent == N && !owing -> is_done = true; break }
    od
}

/* The receiver's side of what happens meanwhile: a lane is granted, or stopped. */
active proctype Upgrades() {
    do
    :: atomic { rx == PLAIN && !managed && !txlane && !owing && lanes < LANES ->
        lanes++; ring = 0; ringread = 0; started = false; over = false; stop = false; taken = false;
        rx = GRANTED; take_over() }
    :: atomic { (rx == GRANTED || rx == ONLANE) && !over && !taken ->
        over = true; stop = true;
        if
        :: ring == ringread -> rx = PLAIN
        :: else
        fi;
        settle() }
    :: atomic { is_done -> break }
    od
}

active proctype Program() {
    byte n;
    bool is_news, is_short;
wait:
end:
    atomic {
#ifdef LEVEL
        (kev || changed || (managed && readable) || (!managed && readable)) ->
#else
        (kev || changed || (managed && edge && readable)) ->
#endif
        is_news = false;
        if
        :: kev && has_known -> is_news = (known != tcpread + tcpq)
        :: kev && !has_known -> is_news = true
        :: else
        fi;
#ifdef BLINDMOD
        is_news = kev;
#endif
        if
        :: kev -> has_known = false
        :: else
        fi;
        if
        :: managed ->
#ifdef DEAF
            is_news = is_news && rx != ONLANE;
#endif
            edge = edge || is_news;
            kev = false;
            advance();
#ifdef LEVEL
            if
            :: readable -> edge = false; seen = (produced > seen -> produced : seen); settle(); goto reading
            :: else -> settle(); goto wait
            fi
#elif defined(ONESHOT)
            if
            :: readable && (edge || fresh) -> edge = false; seen = (produced > seen -> produced : seen); settle(); goto reading
            :: else -> settle(); goto wait
            fi
#else
            if
            :: edge || fresh -> edge = false; seen = (produced > seen -> produced : seen); goto report
            :: else -> settle(); goto wait
            fi
#endif
        :: !managed && lingers && kev ->
            kev = false;
            if
            :: is_news -> lingers = false; modify()
            :: else
            fi;
            goto wait
        :: else ->
            kev = false;
#if defined(LEVEL) || defined(ONESHOT)
            if
            :: readable -> goto reading
            :: else -> goto wait
            fi
#else
            goto report
#endif
        fi;
report:
        assert(news);           /* no edge is one too many */
        news = false;
        settle()
    }
reading:
    do
    :: atomic {
        n = 0; is_short = false;
        if
        :: true ->              /* more room than there are bytes */
            do
            :: true ->
                advance();
                if
                :: readable ->
#ifdef NOCROSS
                    {
                        mtype:way part = rx;
                        do
                        :: readable && rx == part -> take_byte()
                        :: else -> break
                        od;
                        break
                    }
#else
                    take_byte()
#endif
                :: else -> break
                fi
            od;
            is_short = true
        :: true ->              /* room for one */
            advance();
            if
            :: readable -> take_byte()
            :: else -> is_short = true
            fi
        fi;
        settle();
        if
        :: is_short -> break
        :: else
        fi }
    od;
#ifdef ONESHOT
    atomic {
        if
        :: managed -> edge = true
        :: else -> modify()
        fi
    }
#endif
    goto wait
}

active proctype Monitor() {
end:
    timeout -> assert(got == sent)  /* no edge is lost */
}
