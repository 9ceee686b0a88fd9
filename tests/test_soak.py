"""Thousands of connections that open, come on lanes, are revoked and close: nothing grows, no byte is lost.

SOAK_SECONDS and SOAK_CONNECTIONS choose how long and how many: `make soak` is 2,000 connections for ten minutes."""

import collections
import os
import re
import resource
import subprocess
import time
from pathlib import Path

import pytest

from harness import Accel
from netns import namespace, needs_root
from procs import free_port, until

pytestmark = pytest.mark.soak
SECONDS = int(os.environ.get("SOAK_SECONDS", "20"))
CONNECTIONS = int(os.environ.get("SOAK_CONNECTIONS", "500"))


@pytest.fixture
def descriptors():
    """Room for as many descriptors as the system lets us have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 65536), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def held(pid):
    """Descriptors, mappings of memfds, and KiB of private memory that a process has now."""
    maps = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
    private = int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
    return {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "memfds": maps, "KiB": private}


def descriptors_of(pid):
    """What a process has open, by kind."""
    names = (os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return collections.Counter(re.sub(r"[0-9]+", "N", name) for name in names)


def slope(samples):
    """Growth in a second, by least squares over (time, value)."""
    n, middle = len(samples), sum(at for at, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / n
    return sum((at - middle) * (value - mean) for at, value in samples) / sum((at - middle) ** 2 for at, _ in samples)


def with_few_ports(world):
    """A network namespace in which connections soon have the addresses of earlier ones."""
    netns, parameters = namespace(world, "ports"), "/proc/sys/net/ipv4"
    settings = f"echo 32768 {32767 + 4 * CONNECTIONS} > {parameters}/ip_local_port_range && echo 200 > {parameters}/tcp_tw_reuse_delay"
    if subprocess.run(["ip", "netns", "exec", netns, "sh", "-c", settings]).returncode:
        pytest.skip("this kernel uses ports again after a second only")
    return netns


@pytest.mark.parametrize("ports", ["many", pytest.param("few", marks=needs_root)])
def test_nothing_grows(world, bed, descriptors, ports):
    accel, port, netns = Accel(world, "both"), free_port(), with_few_ports(world) if ports == "few" else None
    server = accel.server("server", [bed / "echo", "server", "lt", port, 1 << 30], netns=netns).wait_listening(port)
    at_first = held(server.pid)
    client = accel.client("client", [bed / "soak", port, CONNECTIONS, SECONDS], netns=netns)
    watched = {"broker": accel.broker.proc.pid, "server": server.pid, "client": client.pid}
    until(lambda: accel.broker.stats().lanes > 0, lambda: f"connections come on lanes: {accel.broker.stats()}", seconds=30)
    samples, began = [], time.monotonic()
    # The second half counts: until then caches and tables fill.
    while client.popen.poll() is None and time.monotonic() - began < SECONDS - 1:
        accel.broker.tool("revoke", str(server.pid))
        if time.monotonic() - began > SECONDS / 2:
            samples.append((time.monotonic(), {name: held(pid) for name, pid in watched.items()}))
        time.sleep(max(0.5, SECONDS / 100))
    print(client.finish(60 + SECONDS))
    stats = accel.broker.stats()
    assert stats.lanes > CONNECTIONS / 4, f"too few lanes for this to say anything: {stats}"
    grown = []
    for name in watched:
        for what in ("descriptors", "memfds", "KiB"):
            series = [(at, now[name][what]) for at, now in samples]
            level, growth = max(value for _, value in series), slope(series) * (SECONDS / 2)
            print(f"{name} {what}: {series[0][1]} ... {series[-1][1]}, {growth:+.1f} in {SECONDS / 2:.0f} s")
            # Connections come and go, so it moves: with two DMBs for each lane that is open. What leaks at all leaks
            # with each of tens of thousands.
            usual = 4096 if what == "KiB" else 3 * CONNECTIONS
            if growth > 0.25 * level and (growth if what == "KiB" else level) > usual:
                grown.append(f"{name}: {growth:+.0f} {what}, at most {level}")
    assert not grown, grown
    # All have gone: what is left is what the process itself has, and the doorbells of groups whose end it hears of with
    # its next call.
    most = at_first["descriptors"] + 24 + CONNECTIONS // 8
    until(lambda: held(server.pid)["descriptors"] <= most, lambda: f"at most {most} descriptors; {held(server.pid)}")
    broker = accel.broker.proc.pid
    # The DMBs of the last closes the server, which sleeps, gives back with its next call.
    until(lambda: held(broker)["descriptors"] <= 64 + CONNECTIONS // 8, lambda: f"the broker lets go of all DMBs: {descriptors_of(broker)}")
    assert accel.broker.proc.popen.poll() is None
