"""Ends in different network namespaces, one broker reached by its socket's path."""

import json

import pytest

from harness import EAGER_MODES, Accel
from netns import join, namespace, nat, needs_root
from procs import finish_together, free_port

pytestmark = [pytest.mark.namespaces, needs_root]

each_mode = pytest.mark.parametrize("mode", EAGER_MODES)


def ping_pong(accel, bed, server_at, server_netns, client_to, client_netns, port):
    server = accel.server("server", [bed / "pingpong", "server", port, 4, 300], env={"BED_HOST": server_at}, netns=server_netns)
    server.wait_listening(port)
    client = accel.client("client", [bed / "pingpong", "client", port, 4, 300], env={"BED_HOST": client_to}, netns=client_netns)
    accel.warmed(lanes=2)
    out, served = finish_together(client, server)
    assert len(out.splitlines()) == 5 and served == "done\n"


@each_mode
def test_two_namespaces(world, bed, mode):
    left, right = namespace(world, "a"), namespace(world, "b")
    address, _ = join(left, right, "10.207.1")
    accel = Accel.eager(world, mode, warms=True)
    ping_pong(accel, bed, address, left, address, right, free_port())
    accel.verify(lanes=2, lane_bytes=1 << 20)


@each_mode
def test_iperf3_across_namespaces(world, mode):
    left, right = namespace(world, "a"), namespace(world, "b")
    address, _ = join(left, right, "10.207.1")
    accel, port = Accel.eager(world, mode), free_port()
    accel.server("server", ["iperf3", "-s", "-p", port, "-B", address], netns=left).wait_listening(port)
    report = accel.client("client", ["iperf3", "-c", address, "-p", port, "-t", "1", "-P", "2", "--json"], netns=right).finish()
    end = json.loads(report)["end"]
    assert 0 < end["sum_received"]["bytes"] <= end["sum_sent"]["bytes"]
    accel.verify(lanes=2, lane_bytes=10_000_000)


@each_mode
def test_through_nat(world, bed, mode):
    """The client knows only the router's address, the server sees only the router's: no tuple mirrors another."""
    inside, router, outside = namespace(world, "in"), namespace(world, "nat"), namespace(world, "out")
    server_at, _ = join(inside, router, "10.207.2")
    router_at, _ = join(router, outside, "10.207.3")
    port = free_port()
    nat(router, port, server_at)
    accel = Accel.eager(world, mode, warms=True)
    ping_pong(accel, bed, server_at, inside, router_at, outside, port)
    accel.verify(lanes=2, lane_bytes=1 << 20)


@each_mode
def test_equal_addresses_in_two_namespaces(world, bed, mode):
    """127.0.0.1 and the very same ports in both: each connection must find its own other end."""
    accel, port, source = Accel.eager(world, mode, warms=True), free_port(), free_port()
    env = {"BED_SOURCE": str(source)}
    pairs = []
    for label in ("a", "b"):
        netns = namespace(world, label)
        rounds = 2000 if label == "a" else 2500  # different dialogues: crossed lanes could not go unnoticed
        server = accel.server(f"server-{label}", [bed / "pingpong", "server", port, 1, rounds], netns=netns)
        server.wait_listening(port)
        pairs.append((server, netns, rounds))
    clients = [accel.client("client", [bed / "pingpong", "client", port, 1, rounds], env=env, netns=netns)
               for _, netns, rounds in pairs]  # fmt: skip
    accel.warmed(lanes=2)
    outputs = finish_together(*clients, *(server for server, _, _ in pairs))
    assert all(out.endswith("done\n") for out in outputs)
    accel.verify(lanes=2, lane_bytes=1 << 20)
