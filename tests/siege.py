"""What a hostile user does to a system-wide broker, all at once: a program of its own. `siege.py SOCKET UID` begins as root, for a
userfaultfd (a FUSE mount would do without rights), and goes on as that user."""

import array
import contextlib
import ctypes
import encodings.idna  # now: the user may not read the library
import fcntl
import functools
import os
import random
import select
import socket
import struct
import sys
import threading

from bridge import AGAIN, ARENA, CONN, HELLO, MATCHED, NOMINATE, VERSION, WITHDRAW, memory

EXPECT, QUERY = 10, 9
# What can be asked without an argument, and what with one (crates/broker/src/client.rs).
ASKED = {"ss": 1, "stats": 2, "stats_reset": 3, "device": 4, "info": 6, "linkgroup": 10, "sysctl": 12, "processes": 14, "policy_reload": 16}
ASKED_OF = {"device_set": (5, b"active on"), "ueid": (7, b"show"), "seid": (8, b"show"), "explain": (9, b"1"), "revoke": (11, b"1"),
            "check": (13, b"1 1"), "events": (17, b"0 1000")}  # fmt: skip
SS, STATS, INFO = 1, 2, 6
BLOCKS, HEADER, BLOCK = 32 * 1024, 8192, 1024
PAGE = 4096
# Sessions of the user who says little things without end.
BABBLERS = 500
UFFDIO_API, UFFDIO_REGISTER, SYS_USERFAULTFD = 0xC018AA3F, 0xC020AA00, 323
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.epoll_wait.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]


FAULTS = {}


def endless_page():
    """A page whose first access waits for ever."""
    # Non-blocking, or poll() tells of an error at once.
    fd = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(fd, UFFDIO_API, struct.pack("QQQ", 0xAA, 0, 0))
    address = libc.mmap(None, PAGE, 3, 0x22, -1, 0)
    fcntl.ioctl(fd, UFFDIO_REGISTER, struct.pack("QQQQ", address, PAGE, 1, 0))
    FAULTS[address] = fd
    return address


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def lingering():
    """A socket whose last close waits."""
    client, server = tcp_pair()
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return client, server


def session(path, arena=None, bell=None, timeout=1):
    it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it.settimeout(timeout)
    it.connect(path)
    fds = [arena if arena is not None else memory(ARENA), bell if bell is not None else os.eventfd(0, os.EFD_NONBLOCK)]
    say(it, struct.pack("<HIB16s", HELLO, VERSION, 1, b"siege"), fds)
    for own, given in zip(fds, (arena, bell)):
        if given is None:
            os.close(own)
    return it


def say(to, message, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([message], rights)


def nomination(conn=CONN):
    return struct.pack("<HQBQQB", NOMINATE, conn, 0, 0, 0, 1)


def hold_a_lock(path, page):
    client, _peer = tcp_pair()
    threading.Thread(target=libc.send, args=(client.fileno(), page, PAGE, 0), daemon=True).start()
    it = session(path)
    say(it, nomination(), [client.fileno()])
    return it, client, _peer


def keep_a_doorbell(path, page):
    """A session whose doorbell nobody but the broker has, in a set whose lock a page fault holds: whoever closes it waits."""
    bell, ready, many = os.eventfd(1, os.EFD_NONBLOCK), os.eventfd(1, os.EFD_NONBLOCK), libc.epoll_create1(0)
    for fd in (ready, bell):
        assert libc.epoll_ctl(many, 1, fd, struct.pack("IQ", 1, 0)) == 0
    it = session(path, bell=bell)
    it.recv(1024)
    os.close(bell)
    threading.Thread(target=libc.epoll_wait, args=(many, page, 8, -1), daemon=True).start()
    touched = select.poll()
    touched.register(FAULTS[page], select.POLLIN)
    touched.poll(1000)
    return it


def hold_a_doorbell(path, page):
    keep_a_doorbell(path, page).close()


def leave_unread(path, _page):
    it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it.connect(path)
    ends = [lingering() for _ in range(8)]
    say(it, nomination(), [end.fileno() for end, _ in ends])
    say(it, b"?", [ends[0][0].fileno()])
    it.close()
    # Nobody's close but the broker's is the last.
    return ends


def expect_much(path, _page):
    it = session(path)
    for n in range(4096):
        say(it, struct.pack("<HQB16sH", EXPECT, n, 0, b"\0" * 10 + b"\xff\xff\x7f\0\0\1", 80))
    it.close()


def seem_large(path, _page):
    """An arena full of connections that there are not, and questions about them that nobody reads the answer of."""
    arena = memory(ARENA)
    os.posix_fallocate(arena, ARENA // 2, ARENA // 2)
    header = bytearray(HEADER)
    struct.pack_into("II", header, 0, os.getpid(), BLOCKS)
    os.pwrite(arena, header, 0)
    block = struct.pack("Q", 1) + bytes(BLOCK - 8)
    os.pwrite(arena, block * 2048, HEADER)
    it = session(path, arena=arena)
    it.recv(1024)
    asking = []
    for what in (SS, STATS, INFO, SS, SS):
        tool = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tool.connect(path)
        say(tool, struct.pack("<HHH", QUERY, what, 0))
        asking.append(tool)
    return it, arena, asking


def connect(path, _page=None):
    """Connects and leaves, without waiting, as fast as one can."""
    for _ in range(200):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as it, contextlib.suppress(BlockingIOError):
            it.connect(path)


def speak_nonsense(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as it:
        it.connect(path)
        it.send(b"?")


def ask(path, what, arg):
    """One question, whose answer is read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as it:
        it.connect(path)
        it.send(struct.pack("<HHH", QUERY, what, len(arg)) + arg)
        while it.recv(1 << 16):
            pass


def floods(path):
    """What can be done without end: each by its name."""
    questions = {name: (what, b"") for name, what in ASKED.items()} | ASKED_OF
    asking = {name: functools.partial(ask, path, *question) for name, question in questions.items()}
    return {"connect": functools.partial(connect, path), "nonsense": functools.partial(speak_nonsense, path), **asking}


def flood(path, orders):
    """Has many programs with as much to tell as there can be, and then does what the file `orders` names, without end."""
    kept = [seem_large(path, None) for _ in range(4)] + [session(path) for _ in range(40)]
    ends, them = tcp_pair(), kept[-2:]
    for n in range(1, 500):  # as many events
        offer = lambda role: say(them[role], struct.pack("<HQBQQB", NOMINATE, CONN * n, role, 0, 0, 0), [ends[role].fileno()])
        offer(0), offer(1)
        for role, it in enumerate(them):
            while (kind := struct.unpack_from("<H", it.recv(1024))[0]) != MATCHED:
                if kind == AGAIN:
                    offer(role)
        for it in them:
            say(it, struct.pack("<HQ", WITHDRAW, CONN * n))
    print("begins", flush=True)

    def go_on():
        all_floods = floods(path)
        while True:
            with contextlib.suppress(OSError):
                all_floods[open(orders).read()]()

    for _ in range(4):
        threading.Thread(target=go_on, daemon=True).start()
    threading.Event().wait()


def babble(path):
    """Has hundreds of sessions, and says little things on all of them without end."""
    arena = memory(ARENA)
    kept = [session(path, arena) for _ in range(BABBLERS)]
    wants_more = select.epoll()
    for it in kept:
        it.setblocking(False)
        wants_more.register(it, select.EPOLLOUT)
    by = {it.fileno(): it for it in kept}
    print("begins", flush=True)
    while True:
        for fd, _ in wants_more.poll():
            with contextlib.suppress(BlockingIOError):
                for _ in range(16):
                    by[fd].send(struct.pack("<HQ", WITHDRAW, CONN))


def main(path, user, *only):
    pages = [endless_page() for _ in range(32)]
    os.setgroups([]), os.setresgid(user, user, user), os.setresuid(user, user, user)
    if only and only[0] == "flood":
        return flood(path, only[1])
    if only and only[0] == "babble":
        return babble(path)
    attacks = [hold_a_lock, keep_a_doorbell, hold_a_doorbell, leave_unread, expect_much, seem_large, connect]
    attacks = [attack for attack in attacks if not only or attack.__name__ in only]
    kept = []
    print("begins", flush=True)
    while True:
        attack = random.choice(attacks)
        try:
            kept.append(attack(path, random.choice(pages)))
            print(f"did {attack.__name__}", flush=True)
        except OSError:
            pass  # turned away, or ended for it
        if len(kept) > 24:
            del kept[random.randrange(len(kept))]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
