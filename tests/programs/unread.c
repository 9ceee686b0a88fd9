/* One process has both ends of its connections. Each is asked a number of times, told something more, and closed with that unread;
 * how the other end sees it.
 *   unread ROUNDS */
#include "bed.h"
#include <netinet/tcp.h>

int main(int argc, char **argv) {
    expect(argc == 2, "usage: ROUNDS");
    int rounds = atoi(argv[1]), on = 1;
    int listener = listen_on(0);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &len);
    for (int conn = 0; conn < 20; conn++) {
        char byte = '?';
        int client = connect_to(ntohs(at.sin_port)), server = accept_one(listener);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        for (int round = 0; round < rounds; round++) {
            send_all(client, &byte, 1);
            recv_all(server, &byte, 1);
            send_all(server, &byte, 1);
            recv_all(client, &byte, 1);
        }
        send_all(server, "!", 1);
        usleep(conn % 4 * 5000); /* a lane may open meanwhile, or not */
        close(client);
        say("read %s", outcome(recv(server, &byte, 1, 0)));
        say("write %s", outcome(send(server, &byte, 1, MSG_NOSIGNAL)));
        close(server);
    }
    return 0;
}
