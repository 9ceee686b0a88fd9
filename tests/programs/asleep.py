"""asleep.py server PORT | client PORT COUNT [OPTION VALUE]: a server that waits for all its connections in one epoll set, and a client
that says how long the first write on each of COUNT connections takes, milliseconds. Its sockets do not block. OPTION: of TCP, set
before it connects."""

import select
import socket
import sys
import time

role, port = sys.argv[1], int(sys.argv[2])
if role == "client":
    for _ in range(int(sys.argv[3])):
        with socket.socket() as sock:
            if options := sys.argv[4:]:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, options[0]), int(options[1]))
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            began = time.monotonic()
            sock.send(b"first")
            print((time.monotonic() - began) * 1000)
            select.select([sock], [], [])
            assert sock.recv(9) == b"first"
    sys.exit()
with socket.create_server(("127.0.0.1", port)) as listener, select.epoll() as waiting:
    waiting.register(listener, select.EPOLLIN)
    socks = {}
    while True:
        for fd, _ in waiting.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                socks[sock.fileno()] = sock
                waiting.register(sock, select.EPOLLIN)
            elif data := socks[fd].recv(9):
                socks[fd].send(data)
            else:
                waiting.unregister(fd)
                socks.pop(fd).close()
