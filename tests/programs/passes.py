r"""A server whose first process accepts and hands each connection on a moment later, somewhere in its handshake, and a client that sends at once.
To a process that was there (passes), or to a child that executes cat when its parent has closed the connection (executes).

usage: passes.py passes|executes PORT | ask PORT THREADS CONNECTIONS
"""

import os
import random
import select
import signal
import socket
import sys
import threading


def executes(port):
    listener, moments = socket.create_server(("127.0.0.1", port), backlog=128), random.Random(port)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        select.select([connection], [], [], moments.random() * 0.01)
        closed, closes = os.pipe()
        if os.fork() == 0:
            os.close(closes)
            os.read(closed, 1)
            for number in (0, 1):
                os.dup2(connection.fileno(), number)
            os.execv("/bin/cat", ["cat"])
        connection.close()
        os.close(closes)
        os.close(closed)


def passes(port):
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


if sys.argv[1] == "passes":
    passes(int(sys.argv[2]))
elif sys.argv[1] == "executes":
    executes(int(sys.argv[2]))
else:
    done, threads = [], int(sys.argv[3])
    asking = [threading.Thread(target=ask, args=(int(sys.argv[2]), int(sys.argv[4]), done)) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(done) == threads, "a connection failed; see above"
    print("all", threads)
