r"""A server whose first process accepts and hands each connection on a moment later, somewhere in its handshake, and a client that sends at once.

usage: passes.py serve PORT | ask PORT THREADS CONNECTIONS
"""

import os
import random
import select
import socket
import sys
import threading


def serve(port):
    ours, workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        while True:
            message, fds, _, _ = socket.recv_fds(workers, 1, 1)
            if not message:
                return
            workers.send(b"!")
            threading.Thread(target=echo, args=(socket.socket(fileno=fds[0]),)).start()
    moments = random.Random(port)
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    while True:
        connection, _ = listener.accept()
        # In a wait, so that a handshake goes on meanwhile.
        select.select([connection], [], [], moments.random() * 0.01)
        socket.send_fds(ours, [b"!"], [connection.fileno()])
        ours.recv(1)
        connection.close()


def echo(connection):
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def ask(port, connections, done):
    for number in range(connections):
        text = b"%d\n" % number
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(20)
            connection.sendall(text)
            got = b""
            while len(got) < len(text):
                data = connection.recv(100)
                assert data, f"connection {number}: the stream ended"
                got += data
            assert got == text, f"connection {number}: {got}"
    done.append(True)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    done, threads = [], int(sys.argv[3])
    asking = [threading.Thread(target=ask, args=(int(sys.argv[2]), int(sys.argv[4]), done)) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(done) == threads, "a connection failed; see above"
    print("all", threads)
