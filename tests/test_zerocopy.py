"""MSG_ZEROCOPY: on lanes a program sees the options, numbers, notices and events that it sees on TCP; elsewhere the kernel's own."""

import functools
import os
import re
import subprocess
import sys

import pytest

from harness import EAGER_MODES, HOSTILE, ROOT, Accel, World, fifos
from netns import join, namespace, needs_root
from procs import finish_together, free_port, until

pytestmark = pytest.mark.parity

CASES = ["option", "counting", "reading", "waiting", "edges", "threads", "partial", "inherited", "forked", "limit",
         "unread"]


def run_case(world, mode, bed, case, family="4", host="127.0.0.1", netns=(None, None)):
    """What the two ends print."""
    accel, port = Accel.eager(world, mode, warms=True), free_port()
    env = fifos(world) | {"BED_FAMILY": family, "BED_HOST": host}
    server = accel.server("server", [bed / "zerocopy", "server", case, port], env=env, netns=netns[0]).wait_listening(port)
    client = accel.client("client", [bed / "zerocopy", "client", case, port], env=env, netns=netns[1])
    accel.warmed()
    outputs = finish_together(client, server)
    accel.verify(lane_bytes=5000)
    return outputs


@functools.cache
def on_tcp(bed, case, family):
    world = World()
    try:
        return run_case(world, "tcp", bed, case, family)
    finally:
        world.close()


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("case", CASES)
def test_same_as_on_tcp(world, bed, case, mode):
    expected = on_tcp(bed, case, "4")
    assert run_case(world, mode, bed, case) == expected


@pytest.mark.parametrize("mode", ["tcp", "client", "both"])
@pytest.mark.parametrize("family", ["6", "mapped"])
@pytest.mark.parametrize("case", ["reading", "waiting"])
def test_ipv6_and_mapped_addresses(world, bed, case, family, mode):
    expected = on_tcp(bed, case, family)
    outputs = run_case(world, mode, bed, case, family)
    assert outputs == expected
    # IPV6_RECVERR of SOL_IPV6, in a message of 60 bytes: by the socket's family, not by what its addresses stand for.
    assert case != "reading" or f"{60:016x} {25 << 32 | 41:016x}" in outputs[0]


@pytest.mark.parametrize("case", ["turns", "crowd"])
def test_one_sequence_while_lanes_come_and_go(world, bed, case):
    """Numbers go on over the beginning and the end of lanes, whoever counts; with one thread, and with four."""
    accel, port = Accel.eager(world, "earned", warms=True), free_port()
    env = fifos(world)
    server = accel.server("server", [bed / "zerocopy", "server", case, port], env=env).wait_listening(port)
    client = accel.client("client", [bed / "zerocopy", "client", case, port], env=env)
    for turn in range(1, 9):
        opened = lambda: accel.broker.stats().smc >= 2 * turn or client.popen.poll() is not None
        until(opened, lambda: f"lane {turn}; have {accel.broker.stats()}; {client.describe()}", seconds=20)
        accel.broker.tool("revoke", str((client, server)[turn % 2].pid))
    accel.warmed()
    out, served = finish_together(client, server)
    assert out.startswith("none left: EAGAIN, poll 0\n") and out.endswith("done\n") and served == "done\n"
    assert case == "turns" or "all arrived: 1" in out
    accel.verify(lane_bytes=100_000)


@needs_root
@pytest.mark.namespaces
@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
@pytest.mark.parametrize("case", ["counting", "reading", "waiting"])
def test_same_between_two_hosts(world, bed, case, mode):
    """Over veth, where the kernel copies for the receiver just as over loopback."""
    expected = on_tcp(bed, case, "4")
    left, right = namespace(world, "a"), namespace(world, "b")
    host, _ = join(left, right, "10.207.9")
    assert run_case(world, mode, bed, case, host=host, netns=(left, right)) == expected


def sockets_of(mode, bed, kind, address, settings):
    """What senders and receivers print of sockets of one kind, under Shunpike or not, in two namespaces."""
    world = World()
    try:
        left, right = namespace(world, "a"), namespace(world, "b")
        join(left, right, "10.207.9", "fd00:207")
        accel, outputs, env = Accel.eager(world, mode), [], fifos(world)
        for option, corked in settings:
            arguments = [kind, option, corked, address, free_port()]
            receiver = accel.server("receiver", [bed / "zerocopy_kinds", "receive", *arguments], env=env, netns=left)
            sender = accel.client("sender", [bed / "zerocopy_kinds", "send", *arguments], env=env, netns=right)
            outputs.append(finish_together(sender, receiver))
        return outputs
    finally:
        world.close()


@needs_root
@pytest.mark.namespaces
@pytest.mark.parametrize("address", ["10.207.9.1", "fd00:207::1"])
@pytest.mark.parametrize("kind", ["tcp", "udp", "raw"])
def test_sockets_of_each_kind_between_two_hosts(bed, kind, address):
    """As the kernel's own selftest: its notices, untouched, also of TCP connections that are watched."""
    settings = [(0, 0), (1, 0), (1, 1)]
    on_tcp = sockets_of("tcp", bed, kind, address, settings)
    for (option, corked), (sent, received) in zip(settings, on_tcp, strict=True):
        told = 0 if kind == "raw" else 12 * (4 if corked else 1) * option
        assert f"{told} calls told of" in sent and received == "received 12000\n"
    for mode in ("client", "both"):
        assert sockets_of(mode, bed, kind, address, settings) == on_tcp


@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_unix_sockets_have_none(world, bed, mode):
    accel, env = Accel.eager(world, mode), fifos(world)
    out = accel.client("pair", [bed / "zerocopy_kinds", "send", "unix", 1, 0, "-", 0], env=env).finish()
    assert out.splitlines() == ["SO_ZEROCOPY: EOPNOTSUPP", "received 12000", "no notice: EAGAIN"]


SINK = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
connection, _ = listener.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
print(total)
"""


@pytest.mark.parametrize("mode", ["tcp", "both"])
@pytest.mark.parametrize("language", ["c", "rust"])
def test_the_examples(world, language, mode):
    """They ask for notices until they see that all is copied, as it is by the kernel on one host, and lose no byte. On a lane all is
    lent here, however fast this machine copies."""
    program = HOSTILE.with_name("zerocopy-client")
    if language == "c":
        program = world.directory / "zerocopy-client"
        command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-Werror", "-o", program]
        subprocess.run([*command, ROOT / "examples" / "zerocopy.c"], check=True)
    accel, port = Accel.eager(world, mode, broker_options=["--set", "lend_bytes=32K"]), free_port()
    server = accel.server("server", [sys.executable, "-c", SINK, port]).wait_listening(port)
    client = accel.client("client", [program, "127.0.0.1", port, 64])
    out, received = finish_together(client, server)
    assert received == f"{64 << 20}\n"
    told = re.search(r"67108864 bytes sent, (\d+) calls told of, (\d+) of them copied", out)
    in_vain = re.search(r"the last (\d+) calls were copied", out)
    assert told and int(told[1]) >= 16, out
    if mode == "tcp":
        assert in_vain and int(in_vain[1]) >= 16 and told[1] == told[2], out
    else:
        assert not in_vain and int(told[2]) < int(told[1]) / 2, out
    accel.verify(lane_bytes=1 << 20)
