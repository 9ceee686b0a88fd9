"""What chance will not do in a lifetime: two systems whose GIDs and tokens coincide, and a handshake between them.

Each of the two programs has a broker of its own, so that neither finds its peer. A Bridge takes the peer's place at both:
it holds copies of both sockets, nominates each one at the other side's broker, and passes CLC messages on. A token that it passes
on names what it happens to name at the other side.

A Proxy sits between one program and its broker, and changes only the CLC messages that the program gets: what a token would have
to be to coincide, it is."""

import array
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import re
import socket
import struct
import termios
import threading

from procs import until

SESSION = pathlib.Path(__file__).resolve().parent.parent / "crates/wire/src/session.rs"
VERSION = int(re.search(r"const VERSION: u32 = (\d+);", SESSION.read_text())[1])
CONTROL = int(re.search(r"const CONTROL: u16 = (\d+);", SESSION.read_text())[1])
ARENA, PAGE = 8192 + 32 * 1024 * 1024, 4096  # crates/shm/src/{arena,pages}.rs
CONN = 1 << 32
HELLO, NOMINATE, WITHDRAW, CLC = 1, 2, 3, 4  # to the broker
WELCOME, MATCHED, AGAIN, REFUSED, GONE, RELAYED, WAITING = 1, 2, 3, 4, 5, 6, 11  # from it
PROPOSAL, ACCEPT, CONFIRM, DECLINE = 1, 2, 3, 4
TCP_INFO_ACKED, TCP_INFO_RECEIVED = 120, 128
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438


def memory(size):
    """Shared memory that keeps its size."""
    fd = os.memfd_create("bridge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def socket_of(pid, fd):
    """A copy of another process's socket."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    copy = libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
    error = ctypes.get_errno()
    os.close(pidfd)
    if copy < 0:
        raise OSError(error, f"pidfd_getfd({pid}, {fd})")
    return socket.socket(fileno=copy)


def send(to, message, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([message], rights)


def receive(from_):
    """A message, empty at the end, and the descriptors beside it."""
    message, rights, _, _ = from_.recvmsg(1024, socket.CMSG_SPACE(16 * 4))
    return message, [fd for _, _, data in rights for fd in array.array("i", data[: len(data) // 4 * 4])]


def with_token(clc, token):
    """An Accept or Confirm that names another DMB."""
    return clc[:16] + struct.pack(">Q", token) + clc[24:]


def what_it_is(clc):
    """(type, diagnosis of a Decline)"""
    return clc[4], struct.unpack_from(">I", clc, 16)[0] if clc[4] == DECLINE else None


def versions(control, lanes):
    """Both versions, as Hello and Welcome carry them."""
    return control << 16 | lanes


def hello(both, comm=b"bridge"):
    return struct.pack("<HIB16s", HELLO, both, 1, comm)


class Session:
    """A session with one broker."""

    def __init__(self, broker, greeting=None, arena=ARENA):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(broker.socket))
        arena, bell = memory(arena), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.matched = threading.Event()
        self.say(greeting or hello(versions(CONTROL, VERSION)), [arena, bell])
        os.close(arena), os.close(bell)

    def say(self, message, fds=()):
        send(self.socket, message, fds)

    def hear(self):
        """The next message: its type and the rest. What descriptors come beside it are let go."""
        message, fds = receive(self.socket)
        for fd in fds:
            os.close(fd)
        kind = struct.unpack_from("<H", message)[0]
        if kind == MATCHED:
            self.matched.set()
        return kind, message[2:]

    def nominate(self, end, is_server):
        """Offers a socket, which must be quiet, until the broker has it: as a program would, anew where it found the bytes in motion still."""
        unacknowledged = lambda: struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, b"\0" * 4))[0]
        kind, rest = AGAIN, b""
        while kind == AGAIN:
            # A delayed acknowledgement would come between the two looks.
            until(lambda: unacknowledged() == 0, "the peer's TCP has all")
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
            acked, received = (struct.unpack_from("<Q", info, at)[0] for at in (TCP_INFO_ACKED, TCP_INFO_RECEIVED))
            tx = acked - (0 if is_server else 1)  # the opener's SYN
            self.say(struct.pack("<HQBQQB", NOMINATE, CONN, is_server, tx, received, True), [end.fileno()])
            kind = None
            while kind not in (MATCHED, WAITING, AGAIN, REFUSED):
                kind, rest = self.hear()
        assert kind != REFUSED, f"no match: 0x{struct.unpack_from('<I', rest, 8)[0]:08x}"

    def relay(self, clc):
        self.say(struct.pack("<HQH", CLC, CONN, len(clc)) + clc)


class Bridge:
    """Between the server's broker and the client's. `accept` is the token that the client gets to see in the Accept, in place of
    the one that was sent."""

    def __init__(self, at_server, at_client, server, client, accept=None):
        self.at_server, self.at_client, self.accept = Session(at_server), Session(at_client), accept
        self.passed = []  # (from whom, CLC type, diagnosis)
        ends = [self.end_of(at_server, server), self.end_of(at_client, client)]
        # Each takes the part of the one that is not there.
        self.at_server.nominate(ends[1], is_server=False)
        self.at_client.nominate(ends[0], is_server=True)
        for end in ends:
            end.close()
        ways = (("server", self.at_server, self.at_client), ("client", self.at_client, self.at_server))
        self.threads = [threading.Thread(target=self.carry, args=way) for way in ways]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def end_of(broker, proc):
        rows = until(lambda: [row for row in json.loads(broker.tool("ss", "--json"))["connections"] if row["pid"] == proc.pid],
                     f"{proc.name} is watched")  # fmt: skip
        return socket_of(proc.pid, rows[0]["fd"])

    def carry(self, name, source, target):
        try:
            while True:
                kind, rest = source.hear()
                if kind in (AGAIN, REFUSED):
                    self.passed.append((name, "not matched", kind))
                if kind == RELAYED:
                    clc = rest[10:]
                    self.passed.append((name, *what_it_is(clc)))
                    # Before the program there has nominated its end, a message would be for nobody, and this handshake the only one.
                    target.matched.wait()
                    target.relay(with_token(clc, self.accept) if clc[4] == ACCEPT and self.accept else clc)
        except (OSError, struct.error):
            return  # a session has ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for session in (self.at_server, self.at_client):
            session.socket.shutdown(socket.SHUT_RDWR)
            session.matched.set()
        for thread in self.threads:
            thread.join()
        for session in (self.at_server, self.at_client):
            session.socket.close()


class Proxy:
    """Looks like a broker at `socket`, and is that broker, but for the CLC messages that programs get: `change` makes them
    others. `sent` are those that programs sent. `version`: either side takes the other one for one whose lanes are of that version."""

    def __init__(self, broker, path, change, version=None):
        self.broker, self.socket, self.change, self.version = broker, path, change, version
        self.sent, self.sockets, self.threads = [], [], []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.start(self.serve)

    def start(self, what, *args):
        self.threads.append(threading.Thread(target=what, args=args))
        self.threads[-1].start()

    def serve(self):
        while True:
            try:
                program, _ = self.listener.accept()
            except OSError:
                return
            broker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            broker.connect(str(self.broker.socket))
            self.sockets += [program, broker]
            self.start(self.to_program, broker, program)
            self.start(self.to_broker, program, broker)

    def to_program(self, broker, program):
        # The broker's page counts what it has sent to us; the program's has to count what we have sent on.
        page_fd = memory(PAGE)
        page = mmap.mmap(page_fd, PAGE)
        posted = 0
        for message, fds in messages(broker, program):
            kind = struct.unpack_from("<H", message)[0]
            if kind == WELCOME:
                os.close(fds[0])
                fds[0] = os.dup(page_fd)
                message = self.as_of_version(message)
            if kind == RELAYED:
                message = message[:12] + self.change(message[12:])
            with contextlib.suppress(BrokenPipeError):  # a program that was killed
                send(program, message, fds)
            posted += 1
            struct.pack_into("<I", page, 0, posted)
            for fd in fds:
                os.close(fd)
        page.close()
        os.close(page_fd)

    def to_broker(self, program, broker):
        for message, fds in messages(program, broker):
            kind = struct.unpack_from("<H", message)[0]
            if kind == CLC:
                self.sent.append(what_it_is(message[12:]))
            if kind == HELLO:
                message = self.as_of_version(message)
            send(broker, message, fds)
            for fd in fds:
                os.close(fd)

    def as_of_version(self, message):
        """A Hello or a Welcome, in which the version follows the type."""
        return message if self.version is None else message[:2] + struct.pack("<I", versions(CONTROL, self.version)) + message[6:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for end in [self.listener, *self.sockets]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # ended by the other side
        for thread in self.threads:
            thread.join()
        for end in [self.listener, *self.sockets]:
            end.close()


def messages(source, target):
    """What comes from a socket until its end, which ends the other one too."""
    try:
        while (received := receive(source))[0]:
            yield received
    except OSError:
        pass  # reset
    try:
        target.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # ended already
