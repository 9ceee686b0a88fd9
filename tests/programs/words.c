/* An epoll set that is waited for by libc and past it: what it tells must be what was put there.
 *   words server PORT WORDS TRIGGER WHO     WORDS: fd, pointer, zero, one (for all), most (UINT64_MAX for one, others near)
 *   words client PORT ROUNDS                TRIGGER: level, edge, oneshot; WHO: turns (one thread, by turns), threads (two at once)
 * An eventfd is in the set, too, with a word of the same kind. */
#include "bed.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

enum { GUESTS = 4, MOST = 8 };

static struct guest {
    int fd;
    uint64_t word;
    atomic_int is_armed;
    pthread_mutex_t lock;
} guests[GUESTS];

static int set, event_fd;
static uint64_t event_word;
static uint32_t trigger;
static const char *words;
static int is_one_thread;
static atomic_int open_guests = GUESTS, told;

static int raw_wait(struct epoll_event *events, int timeout) {
#if defined(__x86_64__)
    register long fourth __asm__("r10") = timeout, fifth __asm__("r8") = 0, sixth __asm__("r9") = 8;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_epoll_pwait), "D"(set), "S"(events), "d"((long)MOST), "r"(fourth), "r"(fifth), "r"(sixth) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long call __asm__("x8") = SYS_epoll_pwait, result __asm__("x0") = set, second __asm__("x1") = (long)events, third __asm__("x2") = MOST;
    register long fourth __asm__("x3") = timeout, fifth __asm__("x4") = 0, sixth __asm__("x5") = 8;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth) : "memory");
#endif
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

static uint64_t word_of(int at, int fd) {
    if (!strcmp(words, "fd")) return fd;
    if (!strcmp(words, "pointer")) return (uint64_t)&guests[at];
    if (!strcmp(words, "zero")) return at ? at : 0;
    if (!strcmp(words, "one")) return 0;
    return UINT64_MAX - at;
}

static void arm(struct guest *guest, int op) {
    struct epoll_event event = {EPOLLIN | trigger, {.u64 = guest->word}};
    guest->is_armed = 1;
    if (epoll_ctl(set, op, guest->fd, &event)) die("epoll_ctl");
}

/* Echoes all that there is. */
static void serve(struct guest *guest) {
    char bytes[1024];
    ssize_t got;
    pthread_mutex_lock(&guest->lock);
    while (guest->fd >= 0 && (got = recv(guest->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) send_all(guest->fd, bytes, got);
    if (guest->fd >= 0 && got < 0 && errno != EAGAIN) die("recv");
    if (guest->fd >= 0 && got == 0) {
        close(guest->fd);
        guest->fd = -1;
        open_guests--;
    } else if (guest->fd >= 0 && trigger & EPOLLONESHOT)
        arm(guest, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&guest->lock);
}

/* Of a connection's end a wait past the hooks tells also where a one-shot has fired on a lane. */
static int is_over(struct guest *guest) {
    char byte;
    pthread_mutex_lock(&guest->lock);
    int over = guest->fd < 0 || recv(guest->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    pthread_mutex_unlock(&guest->lock);
    return over;
}

static void attend(struct epoll_event event, const char *by) {
    int found = event.data.u64 == event_word, is_alone = strcmp(words, "one");
    if (found) {
        told++;
        if (is_alone) return;
    }
    for (int at = 0; at < GUESTS; at++) {
        if (guests[at].word != event.data.u64) continue;
        found = 1;
        if (trigger & EPOLLONESHOT && is_alone && is_one_thread && !atomic_exchange(&guests[at].is_armed, 0)) expect(is_over(&guests[at]), "one event for each time that it was armed");
        serve(&guests[at]);
    }
    if (!found) say("told by %s: %#x, %#llx", by, event.events, (unsigned long long)event.data.u64);
    expect(found, "what the set tells was put there");
}

static void wait_once(int is_raw) {
    struct epoll_event events[MOST];
    int n = is_raw ? raw_wait(events, 10) : epoll_wait(set, events, MOST, 10);
    if (n < 0) die("epoll_wait");
    for (int i = 0; i < n; i++) attend(events[i], is_raw ? "raw" : "libc");
}

static void *past(void *none) {
    while (open_guests) wait_once(1);
    return none;
}

static void server(int port, int is_threads) {
    int listener = listen_on(port);
    pthread_t other;
    is_one_thread = !is_threads;
    set = epoll_create1(EPOLL_CLOEXEC);
    event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (int at = 0; at < GUESTS; at++) {
        guests[at].fd = accept_one(listener);
        guests[at].word = word_of(at, guests[at].fd);
        pthread_mutex_init(&guests[at].lock, NULL);
        arm(&guests[at], EPOLL_CTL_ADD);
    }
    event_word = strcmp(words, "pointer") ? word_of(GUESTS, event_fd) : (uint64_t)&event_word;
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = event_word}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, event_fd, &event)) die("epoll_ctl");
    if (is_threads && pthread_create(&other, NULL, past, NULL)) die("pthread_create");
    for (int turn = 0; open_guests; turn++) {
        if (turn % 16 == 0) eventfd_write(event_fd, 1);
        wait_once(!is_threads && turn % 2);
    }
    if (is_threads) pthread_join(other, NULL);
    expect(told, "the eventfd was told of");
    say("served");
}

static void client(int port, int rounds) {
    unsigned char message[256], back[256];
    int fds[GUESTS];
    for (int at = 0; at < GUESTS; at++) fds[at] = connect_to(port);
    uint64_t seed = 1;
    for (int round = 0; round < rounds; round++)
        for (int at = 0; at < GUESTS; at++) {
            rng_fill(&seed, message, sizeof message);
            send_all(fds[at], message, sizeof message);
            recv_all(fds[at], back, sizeof back);
            expect(!memcmp(message, back, sizeof back), "the echo is what was sent");
        }
    for (int at = 0; at < GUESTS; at++) close(fds[at]);
    say("echoed");
}

int main(int argc, char **argv) {
    expect(argc == 4 || argc == 6, "usage: server PORT WORDS TRIGGER WHO, or client PORT ROUNDS");
    if (argc == 4) return client(atoi(argv[2]), atoi(argv[3])), 0;
    words = argv[3];
    if (!strcmp(argv[4], "edge")) trigger = EPOLLET;
    if (!strcmp(argv[4], "oneshot")) trigger = EPOLLONESHOT;
    server(atoi(argv[2]), !strcmp(argv[5], "threads"));
    return 0;
}
