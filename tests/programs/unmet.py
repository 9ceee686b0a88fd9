"""unmet.py COUNT: connections to a listener of a child process that accepts none of them. Says how
long the first write on each takes, milliseconds; the sockets do not block."""

import os
import socket
import sys
import time

reader, writer = os.pipe()
awaits, over = os.pipe()
if os.fork() == 0:
    os.close(over)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        os.write(writer, str(listener.getsockname()[1]).encode())
        os.read(awaits, 1)
    os._exit(0)
port = int(os.read(reader, 16))
kept = []
for _ in range(int(sys.argv[1])):
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    began = time.monotonic()
    sock.send(b"first")
    print((time.monotonic() - began) * 1000)
    kept.append(sock)
os.close(over)
os.wait()
