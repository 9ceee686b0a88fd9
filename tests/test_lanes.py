"""Lanes themselves, as the tools show them: how much of a ring is in use, and when."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from harness import Accel
from procs import free_port, until

pytestmark = pytest.mark.parity

SERVER = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
connection, _ = listener.accept()
while data := connection.recv(1 << 20):
    if data.endswith(b"pause"):
        connection.send(b"!")
        sys.stdin.readline()
"""

CLIENT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    size, times = map(int, line.split())
    if times:
        for _ in range(times):
            connection.sendall(bytes(size))
        print("sent", flush=True)
    else:
        connection.sendall(b"pause")
        connection.recv(1)
        connection.setblocking(False)
        print("taken", connection.send(bytes(size)), flush=True)
"""


class Pair:
    """A client that sends what it is told to, a server that reads it."""

    def __init__(self, world):
        self.accel, port = Accel(world, "both", ["--eager"]), free_port()
        reader, self.server_orders = os.pipe()
        self.accel.server("server", [sys.executable, "-c", SERVER, port], stdin=reader).wait_listening(port)
        orders, writer = os.pipe()
        self.client = self.accel.client("client", [sys.executable, "-c", CLIENT, port], stdin=orders)
        os.close(reader), os.close(orders)
        self.orders = os.fdopen(writer, "w", buffering=1)
        self.sends = 0

    def send(self, size, times):
        self.sends += 1
        print(size, times, file=self.orders)
        until(lambda: self.client.out.count("sent") == self.sends, self.client.describe)

    def send_to_a_server_that_does_not_read(self, size):
        print(size, 0, file=self.orders)
        until(lambda: "taken" in self.client.out, self.client.describe)
        return int(re.search(r"taken (\d+)", self.client.out).group(1))

    def lane(self):
        """The sender's direction."""
        (end,) = [end for end in self.accel.broker.connections() if end["pid"] == self.client.pid]
        return end["tx"]

    def memory(self):
        """Resident bytes of the client's mappings of DMBs."""
        smaps = Path(f"/proc/{self.client.pid}/smaps").read_text()
        return 1024 * sum(int(kib) for kib in re.findall(r"memfd:shunpike-dmb.*?\nRss: +(\d+) kB", smaps, re.S))


def test_a_ring_grows_with_bulk_and_shrinks_without(world):
    pair = Pair(world)
    pair.send(100, 1000)
    lane = pair.lane()
    assert lane["mode"] == "lane" and lane["window"] <= 256 << 10 and lane["ring"] == 8 << 20
    pair.send(1 << 20, 64)
    assert pair.lane()["window"] == 8 << 20
    grown = pair.memory()
    assert grown > 4 << 20

    def shrunk():
        pair.send(100, 1)
        return pair.lane()["window"] == 2048

    time.sleep(1)  # what must pass without bulk
    until(shrunk, lambda: str(pair.lane()))
    assert pair.memory() < grown / 8
    # A reader that gets no CPU for the grace of 100 ms is sent the rest by TCP.
    pair.accel.verify(lane_bytes=64 << 20, more=lambda: pair.send(1 << 20, 16))


def test_a_large_write_finds_room_though_nobody_reads(world):
    """As in TCP's buffers: a lane is not full after its first 16 KiB."""
    pair = Pair(world)
    pair.send(100, 10)
    assert pair.lane()["mode"] == "lane"
    assert pair.send_to_a_server_that_does_not_read(4 << 20) >= 128 << 10
    os.close(pair.server_orders)


@pytest.mark.parametrize("how", ["tcp", "eager", "earned"])
@pytest.mark.parametrize("rounds", [0, 7, 8, 9, 30])
def test_what_is_closed_with_bytes_unread_is_reset(world, bed, how, rounds):
    """Wherever they are: in a ring from which nothing was read so far, too (RFC 1122, 4.2.2.13)."""
    accel = Accel(world, "tcp" if how == "tcp" else "both", ["--eager"] if how == "eager" else [])
    client = accel.client("both", [bed / "unread", rounds])
    assert client.finish() == "read ECONNRESET\nwrite EPIPE\n" * 20
    if how == "eager":
        until(lambda: accel.broker.stats().lanes == 20, lambda: f"all had lanes; have {accel.broker.stats()}")
