"""Serves lines_client.py while it starts programs.

Meanwhile the main thread runs programs in every way that subprocess knows: close_fds or not, vfork or fork, with pass_fds,
and in sessions of their own. Prints how many it ran. Ends when CONNECTIONS connections are over.

usage: spawning_server.py PORT CONNECTIONS
"""

import hashlib
import os
import socket
import subprocess
import sys
import threading

ENDED = threading.Semaphore(0)


def serve(connection):
    with connection, connection.makefile("rb") as lines:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for line in lines:
            connection.sendall(hashlib.shake_256(line.strip()).digest(int(line)))
    ENDED.release()


def accept(listener, connections):
    for _ in range(connections):
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,)).start()


def spawn_until_ended(connections):
    null = open(os.devnull)
    ways = [
        {"close_fds": True},
        {"close_fds": False},
        {"close_fds": True, "pass_fds": (null.fileno(),)},
        {"close_fds": True, "start_new_session": True},
        {"close_fds": True, "preexec_fn": lambda: None},  # fork instead of vfork
    ]
    runs, left = 0, connections
    while left or runs < 2 * len(ways):
        out = subprocess.run(["echo", "hello"], stdout=subprocess.PIPE, check=True, **ways[runs % len(ways)]).stdout
        assert out == b"hello\n"
        runs += 1
        while left and ENDED.acquire(blocking=False):
            left -= 1
    return runs


def main():
    port, connections = int(sys.argv[1]), int(sys.argv[2])
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        threading.Thread(target=accept, args=(listener, connections)).start()
        print("ran", spawn_until_ended(connections))


main()
