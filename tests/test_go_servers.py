"""Servers in Go, of other projects, under `shunpike run --entry=syscall`, each with its own client: what the client gets is the same as on TCP."""

import functools

import pytest

from harness import Accel, World
from packages import modules_by_go
from procs import free_port, until
from test_go import line, needs_time, under
from test_programs_hard import HARD_MODES, start

pytestmark = [pytest.mark.programs, pytest.mark.suites]


@functools.cache
def built(name):
    """The directory of a server's and its client's programs."""
    return modules_by_go(name, *{
        "nats": (["github.com/nats-io/nats-server/v2@v2.15.2", "github.com/nats-io/nats.go@v1.55.0"], "github.com/nats-io/nats-server/v2"),
        "etcd": (["go.etcd.io/etcd/server/v3@v3.7.3", "go.etcd.io/etcd/client/v3@v3.7.3"], "go.etcd.io/etcd/server/v3"),
        "grpc": (["google.golang.org/grpc@v1.85.0"],),
    }[name])  # fmt: skip


def nats(accel):
    programs, port = built("nats"), free_port()
    argv = [programs / "nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", accel.world.directory / "store"]
    accel.server("nats", argv).wait_listening(port)
    return accel.client("ask", [programs / "ask", f"nats://127.0.0.1:{port}"]).finish(60)


def etcd(accel):
    """A cluster of three, whose members talk all the while."""
    programs, ports = built("etcd"), [(free_port(), free_port()) for _ in range(3)]
    url = lambda port: f"http://127.0.0.1:{port}"
    cluster = ",".join(f"m{at}={url(peer)}" for at, (_, peer) in enumerate(ports))
    for at, (port, peer) in enumerate(ports):
        accel.server(f"etcd{at}", [
            programs / "server", "--name", f"m{at}", "--data-dir", accel.world.directory / f"data{at}", "--log-level", "error",
            "--listen-client-urls", url(port), "--advertise-client-urls", url(port), "--listen-peer-urls", url(peer),
            "--initial-advertise-peer-urls", url(peer), "--initial-cluster", cluster])  # fmt: skip
    for server, (port, _) in zip(accel.world.procs[-3:], ports, strict=True):
        server.wait_listening(port, 60)
    return accel.client("ask", [programs / "ask", *(f"127.0.0.1:{port}" for port, _ in ports)]).finish(100)


def grpc(accel):
    programs = built("grpc")
    port = line(accel.server("serve", [programs / "serve"]))
    return accel.client("ask", [programs / "ask", port]).finish(60)


# Each, and the least bytes on lanes where both ends are under Shunpike.
SERVERS = {"nats": (nats, 1 << 20), "etcd": (etcd, 100_000), "grpc": (grpc, 1 << 20)}


@functools.cache
def on_tcp(name):
    world = World()
    try:
        return SERVERS[name][0](Accel(world, "tcp"))
    finally:
        world.close()


@pytest.mark.parametrize("mode", HARD_MODES)
@pytest.mark.parametrize("name", SERVERS)
def test_server(world, name, mode):
    needs_time(True)
    under(world)
    dialogue, least = SERVERS[name]
    wanted, accel = on_tcp(name), start(world, mode)
    assert dialogue(accel) == wanted
    if mode in ("both", "eager"):
        moved = lambda: accel.broker.stats().tx_bytes
        until(lambda: moved() >= least, lambda: f"{least} bytes on lanes; have {accel.broker.stats()}")
    print(f"{name}, {mode}: {accel.broker.stats()}")
