"""looks.py BROKER STATE READER: brings connections of its own, one for each way to look, to STATE of an upgrade or a revocation, and says
what a look alone, with no other call in between, shows of the bytes that are there. READER: the end that looks, "client" or "server".
BROKER: its process, or 0 on TCP. Whoever runs it answers "ask" with where the ends' directions run."""

import array
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time

broker, state, role = int(sys.argv[1]), sys.argv[2], sys.argv[3]
# On TCP each is at once.
PATIENCE = 0.1 * float(os.environ.get("SHUNPIKE_TEST_PATIENCE", "1"))
ROOM = 4096
other = None


def ask(port):
    """Where the directions of the connection of that port run: {"client.rx": "lane", ...}."""
    print("ask", port, flush=True)
    return dict(word.split("=") for word in sys.stdin.readline().split())


def until(reached, port):
    if not broker:
        return
    poll = select.poll()
    poll.register(other[0])
    end = time.monotonic() + 20
    while not reached(modes := ask(port)):
        assert time.monotonic() < end, f"{state}: {modes}"
        poll.poll(0)  # on another connection: hears the broker, and looks at nothing of ours


def pair(listener):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(10)
    return client, server


def exchange(client, server, times):
    for _ in range(times):
        client.send(b"?"), server.recv(1)
        server.send(b"!"), client.recv(1)


class Connection:
    def __init__(self, listener, flags=0):
        """`flags`: of a set that waits for its bytes from the first."""
        client, server = pair(listener)
        self.reader, self.writer = (client, server) if role == "client" else (server, client)
        self.client, self.server, self.sent, self.kept = client, server, 0, []
        self.port = client.getsockname()[1]
        if flags:
            self.set = select.epoll()
            self.set.poll(0)
            self.set.register(self.reader, select.EPOLLIN | flags)
            self.set.poll(0)  # a set of which no wait was seen keeps its connections on TCP
            self.kept.append(self.set)

    def close(self):
        for end in (self.reader, self.writer, *self.kept):
            end.close()

    def send(self, n):
        assert self.writer.send(bytes(range(self.sent, self.sent + n))) == n
        self.sent += n

    def nominated(self, before=lambda: None):
        """... with the broker stopped, then `before`, and what the broker makes of it."""
        if broker:
            os.kill(broker, signal.SIGSTOP)
        try:
            exchange(self.client, self.server, 12)
            before()
        finally:
            if broker:
                os.kill(broker, signal.SIGCONT)

    def granted(self, before=lambda: None):
        """The reader has granted its half and not looked since, the writer is on its lane."""
        self.nominated(before)
        writer = "server" if role == "client" else "client"
        until(lambda modes: modes.get(f"{role}.rx") == "granted" and modes.get(f"{writer}.tx") == "lane", self.port)

    def on_lane(self):
        self.nominated()

        def reached(modes):
            exchange(self.client, self.server, 1)
            return len(modes) == 4 and set(modes.values()) == {"lane"}

        until(reached, self.port)


def hand_over(conn):
    """The reader's descriptor goes to somebody else, which needs it drained or taken back."""
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [conn.reader.fileno()])
    conn.kept += [a, b]


def watched(conn):
    conn.send(50)


def nominated(conn):
    if broker:
        os.kill(broker, signal.SIGSTOP)
    exchange(conn.client, conn.server, 12)
    conn.send(50)


def granted_tcp(conn):
    conn.granted(lambda: conn.send(50))


def granted_ring(conn):
    conn.granted()
    conn.send(50)


def granted_both(conn):
    conn.granted(lambda: conn.send(50))
    conn.send(40)


def granted_ended(conn):
    granted_both(conn)
    conn.writer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    conn.send(10)


def lane(conn):
    conn.on_lane()
    conn.send(50)


def ended(conn):
    lane(conn)
    conn.writer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)  # no lane can do it: the writer leaves in peace
    conn.send(40)


def stopped(conn):
    lane(conn)
    conn.reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    conn.send(40)


def taken(conn):
    lane(conn)
    hand_over(conn)
    conn.send(40)


def revoked(conn):
    lane(conn)
    assert len(conn.reader.recv(ROOM)) == conn.sent
    conn.writer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    conn.sent = 0
    conn.send(50)


def bounded(look, wanted):
    """The first result that is wanted, or the last one within the time."""
    end = time.monotonic() + PATIENCE
    while (got := look()) != wanted and time.monotonic() < end:
        time.sleep(0.001)
    return got


def fionread(conn):
    def look():
        count = array.array("i", [0])
        fcntl.ioctl(conn.reader, termios.FIONREAD, count)
        return count[0]

    return bounded(look, conn.sent)


def peek(conn, flags=socket.MSG_PEEK | socket.MSG_DONTWAIT, room=ROOM):
    def look():
        try:
            return len(conn.reader.recv(room, flags))
        except BlockingIOError:
            return "EAGAIN"

    return bounded(look, min(room, conn.sent))


def peek_vector(conn):
    def look():
        parts = [bytearray(7), bytearray(60), bytearray(ROOM)]
        try:
            n, *_ = conn.reader.recvmsg_into(parts, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return n, b"".join(parts)[:n] == bytes(range(n))
        except BlockingIOError:
            return "EAGAIN"

    return bounded(look, (conn.sent, True))


def read(conn, flags=socket.MSG_DONTWAIT):
    try:
        got = conn.reader.recv(ROOM, flags)
    except BlockingIOError:
        return "EAGAIN"
    return len(got), flags & socket.MSG_TRUNC or got == bytes(range(len(got)))


def read_blocking(conn):
    return read(conn, 0)


def truncate(conn):
    return read(conn, socket.MSG_DONTWAIT | socket.MSG_TRUNC)


def read_whole(conn):
    got = conn.reader.recv(conn.sent, socket.MSG_WAITALL)
    return len(got), got == bytes(range(len(got)))


def read_pieces(conn):
    """Drained by reads that are as small as can be."""
    got = bytearray()
    while len(got) < conn.sent:
        try:
            got += conn.reader.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return len(got), "EAGAIN"
    return len(got), got == bytes(range(len(got)))


def read_nothing(conn):
    return len(conn.reader.recv(0))


def poll(conn):
    poll = select.poll()
    poll.register(conn.reader, select.POLLIN | select.POLLPRI | select.POLLRDHUP)
    return [event for _, event in poll.poll(PATIENCE * 1000)]


def select_it(conn):
    return [len(ready) for ready in select.select([conn.reader], [], [conn.reader], PATIENCE)]


def epoll(conn, flags=0):
    with select.epoll() as waiting:
        waiting.register(conn.reader, select.EPOLLIN | flags)
        told = [[event for _, event in waiting.poll(PATIENCE)]]
        if flags and not flags & select.EPOLLEXCLUSIVE:  # may be told once more at a lane's end: COMPLIANCE.md
            told.append([event for _, event in waiting.poll(0)])
        return told


def epoll_edge(conn):
    return epoll(conn, select.EPOLLET)


def epoll_once(conn):
    return epoll(conn, select.EPOLLONESHOT)


def epoll_exclusive(conn):
    return epoll(conn, select.EPOLLEXCLUSIVE | select.EPOLLET)


def drained(conn, arm=lambda conn: None):
    """By one who is told by a set, reads until a read is short, and waits for the next event then."""
    got = bytearray()
    while len(got) < conn.sent and conn.set.poll(PATIENCE):
        try:
            while len(part := conn.reader.recv(60, socket.MSG_DONTWAIT)) == 60:
                got += part
            got += part
        except BlockingIOError:
            pass
        arm(conn)
    return len(got), got == bytes(range(len(got)))


def drained_by_edges(conn):
    return drained(conn)


def drained_by_exclusive_edges(conn):
    return drained(conn)


def drained_by_levels(conn):
    return drained(conn)


def drained_by_shots(conn):
    return drained(conn, lambda conn: conn.set.modify(conn.reader, select.EPOLLIN | select.EPOLLONESHOT))


drained_by_edges.flags = select.EPOLLET
drained_by_exclusive_edges.flags = select.EPOLLET | select.EPOLLEXCLUSIVE
drained_by_levels.flags = select.EPOLLRDHUP
drained_by_shots.flags = select.EPOLLONESHOT


def so_error(conn):
    return conn.reader.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def tcp_info(conn):
    return conn.reader.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]


WAYS = [fionread, peek, peek_vector, read, read_blocking, truncate, read_whole, read_pieces, read_nothing, poll, select_it, epoll,
        epoll_edge, epoll_once, epoll_exclusive, drained_by_edges, drained_by_exclusive_edges, drained_by_levels, drained_by_shots, so_error, tcp_info]  # fmt: skip

with socket.create_server(("127.0.0.1", 0)) as listener:
    other = pair(listener)
    if broker:  # a session is there before the broker is stopped
        first = Connection(listener)
        first.on_lane()
        first.close()
    for way in WAYS:
        conn = Connection(listener, getattr(way, "flags", 0))
        globals()[state](conn)
        print(way.__name__, way(conn), flush=True)
        if broker:
            os.kill(broker, signal.SIGCONT)
        conn.close()
    for end in other:
        end.close()
print("done", flush=True)
