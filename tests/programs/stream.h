/* A byte stream that is computable at each position, so that a wrong byte names its offset and, mostly, where it came
 * from; and the tally of how far each direction of each connection is, in a file that outlives both ends. */
#ifndef STREAM_H
#define STREAM_H

#include "bed.h"
#include <stdatomic.h>
#include <sys/mman.h>

#define CONNS 64
/* A misplaced stretch is looked for this far around its position. */
#define REACH (8 << 20)

/* One direction of a connection. The harness reads these words, too: see stress.py. */
struct way {
    _Atomic uint64_t asked;    /* handed to a writing call that may not have returned */
    _Atomic uint64_t sent;     /* taken by writing calls that returned */
    _Atomic uint64_t received; /* delivered, and right */
    _Atomic uint64_t ended;    /* how its reader saw it end: 0 not yet, 1 end of stream, 2 reset */
};

struct tally {
    _Atomic uint64_t stop;   /* the harness asks writers to finish */
    _Atomic uint64_t killed; /* ... and says before that it kills somebody */
    _Atomic uint64_t failed; /* set by who fails first; what others see then follows from it */
    /* Set with the first SIGSTOP: after one, calls that block return early, on TCP, too. */
    _Atomic uint64_t stopped;
    _Atomic uint64_t seen; /* the harness has looked at who failed: it may end */
    uint64_t reserved[3];
    struct way ways[CONNS][2]; /* [0] client to server */
};

static UNUSED struct tally *open_tally(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct tally), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) die("tally");
    close(file);
    return at;
}

static UNUSED uint64_t word_at(uint64_t key, uint64_t index) {
    uint64_t state = key + index * 0x9e3779b97f4a7c15u;
    return rng_next(&state);
}

static UNUSED unsigned char byte_at(uint64_t key, uint64_t at) {
    return word_at(key, at / 8) >> at % 8 * 8;
}

static UNUSED void stream_fill(uint64_t key, uint64_t at, unsigned char *to, size_t count) {
    for (; count > 0 && at % 8; count--) *to++ = byte_at(key, at++);
    for (; count >= 8; count -= 8, to += 8, at += 8) {
        uint64_t word = word_at(key, at / 8);
        memcpy(to, &word, 8);
    }
    for (; count > 0; count--) *to++ = byte_at(key, at++);
}

/* Index of the first byte that is not the stream's, or -1. */
static UNUSED long stream_check(uint64_t key, uint64_t at, const unsigned char *from, size_t count) {
    size_t i = 0;
    for (; i < count && (at + i) % 8; i++)
        if (from[i] != byte_at(key, at + i)) return i;
    for (; count - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, from + i, 8);
        if (word != word_at(key, (at + i) / 8)) break;
    }
    for (; i < count; i++)
        if (from[i] != byte_at(key, at + i)) return i;
    return -1;
}

/* Where in the stream the bytes at `from` belong, within REACH of `at`; -1: nowhere there. */
static UNUSED int64_t stream_find(uint64_t key, uint64_t at, const unsigned char *from, size_t count) {
    unsigned char some[16];
    size_t length = count < sizeof some ? count : sizeof some;
    if (length < 4) return -1;
    for (uint64_t place = at > REACH ? at - REACH : 0; place < at + REACH; place++) {
        if (byte_at(key, place) != from[0]) continue;
        stream_fill(key, place, some, length);
        if (!memcmp(some, from, length)) return place;
    }
    return -1;
}
#endif
