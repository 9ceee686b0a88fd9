/* Messages of 14 bytes to and fro, one at a time, as fast as they go.
 *   rounds server PORT
 *   rounds client PORT ROUNDS */
#include "bed.h"

int main(int argc, char **argv) {
    expect(argc == 4 || (argc == 3 && !strcmp(argv[1], "server")), "usage: server PORT | client PORT ROUNDS");
    unsigned char message[14] = "to and fro";
    if (argc == 3) {
        int fd = accept_one(listen_on(atoi(argv[2])));
        while (recv_upto(fd, message, sizeof message) == sizeof message) send_all(fd, message, sizeof message);
        return 0;
    }
    int fd = connect_to(atoi(argv[2]));
    for (long left = atol(argv[3]); left > 0; left--) {
        message[13] = left;
        send_all(fd, message, sizeof message);
        recv_all(fd, message, sizeof message);
        expect(message[13] == (unsigned char)left, "the answer is the message");
    }
    say("done");
    close(fd);
    return 0;
}
