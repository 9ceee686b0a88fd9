"""unmet.py COUNT: connections to a listener of this process that accepts none of them, while another thread might. Says how
long the first write on each takes, milliseconds; the sockets do not block."""

import socket
import sys
import threading
import time

over = threading.Event()
threading.Thread(target=over.wait).start()
with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
    kept = []
    for _ in range(int(sys.argv[1])):
        sock = socket.create_connection(listener.getsockname())
        sock.setblocking(False)
        began = time.monotonic()
        sock.send(b"first")
        print((time.monotonic() - began) * 1000)
        kept.append(sock)
over.set()
