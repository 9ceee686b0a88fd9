"""Completion queues: pollers are spread over them as they come and go, and what threads share does not grow with them."""

import os
import re
from pathlib import Path

import pytest

from harness import Accel
from procs import free_port, until

pytestmark = pytest.mark.operators


def doorbells(pid):
    """Of each epoll set of a process that has lanes: the doorbells in it, by inode of what is shared with peers."""
    links = {int(path.name): os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    info = lambda fd: Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
    # A count as full as can be, less the rings: nobody else's eventfd has that.
    is_bell = lambda fd: "eventfd" in links.get(fd, "") and re.search(r"eventfd-count: +[78][0-9a-f]{15}$", info(fd), re.M)
    sets = (map(int, re.findall(r"^tfd: +(\d+)", info(fd), re.M)) for fd, link in links.items() if "[eventpoll]" in link)
    return [bells for fds in sets if (bells := {fd for fd in fds if is_bell(fd)})]


class Clients:
    """Connections to a memcached, each of which asks for what it has just stored, as it is told."""

    PROGRAM = """
import socket, sys
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for number, line in enumerate(sys.stdin):
    for at, connection in enumerate(connections):
        connection.sendall(b"set k%d 0 0 5\\r\\n%05d\\r\\nget k%d\\r\\n" % (at, number % 100000, at))
    for at, connection in enumerate(connections):
        wanted, got = b"STORED\\r\\nVALUE k%d 0 5\\r\\n%05d\\r\\nEND\\r\\n" % (at, number % 100000), b""
        while len(got) < len(wanted):
            got += connection.recv(4096)
        assert got == wanted, (got, wanted)
    print("ok", flush=True)
"""

    def __init__(self, accel, port, count):
        read, self.orders = os.pipe()
        self.proc = accel.client("clients", ["python3", "-c", self.PROGRAM, port, count], stdin=read)
        os.close(read)
        self.rounds = 0

    def ask(self):
        os.write(self.orders, b"\n")
        self.rounds += 1
        until(lambda: self.proc.out.count("ok") == self.rounds, self.proc.describe, seconds=30)

    def end(self):
        os.close(self.orders)
        self.proc.finish()


def test_sets_are_spread_and_go_over_as_the_setting_says(world):
    """memcached's four worker threads: a queue for each; one for all while it is so set; a queue for each again. Each request
    is answered all the while."""
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    argv = ["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "4", "-p", port]
    server = accel.server("memcached", argv).wait_listening(port)
    clients = Clients(accel, port, 12)
    modes = lambda: {connection["mode"] for connection in accel.broker.connections()}
    until(lambda: clients.ask() or modes() == {"SMCD"}, lambda: f"lanes; have {modes()}", seconds=30)

    def queues():
        clients.ask()
        sets = doorbells(server.pid)
        assert len(sets) == 4, sets
        return sorted(min(bells) for bells in sets) if all(len(bells) == 1 for bells in sets) else []

    until(lambda: len(set(queues())) == 4, lambda: f"a queue for each of {doorbells(server.pid)}")
    for most, wanted in ((1, 1), (2, 2), (8, 4), (1, 1), (8, 4)):
        accel.broker.tool("sysctl", f"max_cqs={most}")
        spread = lambda wanted=wanted: (all_ := queues()) and len(set(all_)) == wanted and max(map(all_.count, all_)) == 4 // wanted
        until(spread, lambda: f"{wanted} queues; have {doorbells(server.pid)}")
    clients.end()
    accel.verify(lanes=12)


# Addresses of tests/programs/lines.c's marks, but for the last digit: the first thread begins requests, ends, the second does,
# and the same of a sleep.
MARKS = 0x7A000000000


def accesses(trace):
    """The lines of memory that each of the two threads wrote and touched between its marks, and the instructions of its requests
    and sleeps."""
    written, touched, instructions, of = (set(), set()), (set(), set()), [0, 0, 0, 0], None
    for line in trace:
        kind = line[:2]
        if kind == "I ":
            instructions[of] += 1
        elif kind in (" S", " L", " M"):
            address, size = line[3:].split(",")
            address = int(address, 16)
            if address >> 4 == MARKS:
                of = address % 16 // 2
                continue
            lines = {address >> 6, (address + int(size) - 1) >> 6}
            touched[of % 2].update(lines)
            if kind != " L":
                written[of % 2].update(lines)
    return written, touched, instructions


def shared(accel, bed, threads, connections, rounds=3):
    """(lines that one of two threads writes and the other touches, instructions a request)."""
    world, port, before = accel.world, free_port(), accel.broker.stats().lanes
    pipe = world.directory / f"trace-{threads}-{connections}"
    os.mkfifo(pipe)
    # What lies between the marks is a thousandth of all.
    windows = world.start("sed", ["sed", "-n", f"/ S {MARKS:x}[0246],/,/ S {MARKS:x}[1357],/p", pipe])
    argv = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={pipe}", bed / "lines", port, threads, connections, rounds]
    proc = accel.client("lines", argv)
    lanes = lambda: proc.popen.poll() is not None or accel.broker.stats().lanes - before == threads * connections
    until(lanes, lambda: f"all lanes; have {accel.broker.stats()}", seconds=60)
    Path(world.env["BED_WARM_UNTIL"]).touch()
    proc.finish(120)
    windows.finish(60)
    Path(world.env["BED_WARM_UNTIL"]).unlink()
    written, touched, instructions = accesses(windows.out.splitlines())
    assert all(instructions) and all(touched)
    both = (written[0] & touched[1]) | (written[1] & touched[0])
    return both, sum(instructions[:2]) / (2 * rounds * connections)


def test_threads_share_no_line_of_memory_on_a_request(world, bed):
    """send, epoll_wait, recv and epoll_ctl of two threads of one process, and their sleeps: no lock, no counter, no queue of
    both, however many connections and sets there are; and as many instructions a request."""
    accel = Accel.eager(world, "earned", warms=True)
    few, many = shared(accel, bed, 2, 2), shared(accel, bed, 4, 8)
    assert not few[0] and not many[0], f"lines of both: {[[hex(line << 6) for line in lines] for lines, _ in (few, many)]}"
    # A look at the set is shared by more requests.
    assert many[1] <= 1.1 * few[1] and few[1] < 20_000, f"instructions a request: {few[1]}, {many[1]}"
