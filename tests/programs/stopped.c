/* A peer that is stopped. Its writer must get rid of as many bytes as the kernel's buffers take, and not wait for ever
 * where TCP would not; once the peer goes on, it gets every byte.
 *   stopped server|client PORT blocking|poll|epoll */
#include "stream.h"
#include <pthread.h>
#include <sys/epoll.h>

#define SEED 4711
/* Linux's receive and send buffers hold more than this for a peer that does not read; a lane's ring need not. */
#define TCP_TAKES 400000
#define PATIENCE_MS 12000

static _Atomic uint64_t sent;
static unsigned char data[65536];

/* Says its process id first, so that the client can stop it; then reads to the end and answers how much was right. */
static void serve(int fd) {
    int32_t pid = getpid();
    uint64_t at = 0;
    ssize_t got;
    send_all(fd, &pid, sizeof pid);
    while ((got = recv(fd, data, sizeof data, 0)) > 0) {
        expect(stream_check(SEED, at, data, got) < 0, "each byte is the one that was sent there");
        at += got;
    }
    expect(got == 0, "the stream ends in peace");
    send_all(fd, &at, sizeof at);
}

static void *write_stream(void *argument) {
    static unsigned char chunk[20000];
    int fd = *(int *)argument;
    for (;;) {
        stream_fill(SEED, sent, chunk, sizeof chunk);
        ssize_t n = send(fd, chunk, sizeof chunk, MSG_NOSIGNAL);
        if (n <= 0) return NULL; /* the main thread has shut the socket down */
        sent += n;
    }
}

/* Without blocking: waits as `how` says, and writes what fits. */
static void write_ready(int fd, const char *how, int64_t until) {
    static unsigned char chunk[20000];
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLOUT};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    while (sent < TCP_TAKES && now_ms() < until) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        int ready = strcmp(how, "poll") ? epoll_wait(set, &event, 1, until - now_ms()) : poll(&one, 1, until - now_ms());
        if (ready < 0 && errno != EINTR) die("waiting");
        if (ready <= 0) continue;
        stream_fill(SEED, sent, chunk, sizeof chunk);
        ssize_t n = send(fd, chunk, sizeof chunk, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) die("send");
        if (n > 0) sent += n;
    }
    close(set);
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client PORT blocking|poll|epoll");
    int port = atoi(argv[2]), fd;
    if (!strcmp(argv[1], "server")) {
        int listener = listen_on(port);
        fd = accept_one(listener);
        warm_up_server(fd);
        serve(fd);
        return 0;
    }
    int32_t peer;
    uint64_t received;
    fd = connect_to(port);
    warm_up_client(fd);
    recv_all(fd, &peer, sizeof peer);
    if (kill(peer, SIGSTOP)) die("SIGSTOP");
    int64_t until = now_ms() + PATIENCE_MS;
    pthread_t writer;
    int blocks = !strcmp(argv[3], "blocking");
    if (blocks) {
        if (pthread_create(&writer, NULL, write_stream, &fd)) die("pthread_create");
        while (sent < TCP_TAKES && now_ms() < until) usleep(1000);
    } else {
        write_ready(fd, argv[3], until);
    }
    say("as much as TCP takes: %d", sent >= TCP_TAKES);
    if (kill(peer, SIGCONT)) die("SIGCONT");
    if (shutdown(fd, SHUT_WR)) die("shutdown");
    if (blocks) pthread_join(writer, NULL);
    recv_all(fd, &received, sizeof received);
    say("all received: %d", received >= sent && received < sent + 20000);
    close(fd);
    return 0;
}
