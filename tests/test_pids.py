"""PIDs that the tools show and take are those of the caller's pid namespace, wherever the broker is."""

import json
import subprocess
import sys

import pytest

from harness import Accel
from netns import needs_root
from operators import CLIENT, SERVER
from procs import free_port, until

pytestmark = [pytest.mark.operators, needs_root]

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]


def own_pid(process):
    """What the program that `unshare` has started calls itself, and what we call it."""
    children = until(lambda: open(f"/proc/{process.pid}/task/{process.pid}/children").read().split(), process.describe)
    (line,) = [line for line in open(f"/proc/{children[0]}/status") if line.startswith("NSpid:")]
    here, own = line.split()[1:]
    return int(here), int(own)


class Container:
    """A server in a pid namespace of its own, with a client of the host's; `ask` asks from within."""

    def __init__(self, world, options=()):
        self.accel, self.port = Accel(world, "both", ["--eager"], options), free_port()
        self.env = world.env | {"SHUNPIKE_SOCKET": str(self.accel.broker.socket)}
        run = [world.binary, "run", "--eager", "--"]
        self.server = world.start("server", [*CONTAINER, *run, sys.executable, "-c", SERVER, self.port], env=self.env)
        until(lambda: subprocess.run(["ss", "-Hltn", f"sport = :{self.port}"], capture_output=True).stdout, self.server.describe)
        self.here, self.own = own_pid(self.server)
        self.client = self.accel.client("client", [sys.executable, "-c", CLIENT, self.port], stdin=subprocess.PIPE)
        self.talk()
        until(lambda: {end["mode"] for end in self.accel.broker.connections()} == {"SMCD"}, lambda: f"lanes: {self.accel.broker.connections()}")

    def talk(self):
        told = self.client.out.count("done")
        self.client.popen.stdin.write(b"1 100 50\n")
        self.client.popen.stdin.flush()
        until(lambda: self.client.out.count("done") > told, self.client.describe)

    def ask(self, *arguments):
        """One of the tools, called in the pid namespace of the server: its status and what it said."""
        inside = ["nsenter", "-t", str(self.here), "--pid", "--mount", "--"]
        argv = [*inside, self.accel.world.binary, *map(str, arguments)]
        result = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30)
        return result.returncode, result.stdout + result.stderr

    def pids(self, *arguments, key="pid"):
        status, out = self.ask(*arguments, "--json")
        assert status == 0, out
        return sorted(row[key] for row in json.loads(out)["connections"])


@pytest.fixture
def container(world):
    container = Container(world)
    yield container
    container.client.popen.stdin.close()
    container.client.finish()
    # The first process of a pid namespace takes no other signal from without.
    container.server.kill()


def test_what_is_shown_in_a_container_is_called_as_there(container):
    assert container.own < 100 and container.own != container.here
    assert container.pids("ss") == [0, container.own], "the host's client has no name there"
    assert sorted(end["pid"] for end in container.accel.broker.connections()) == sorted([container.here, container.client.pid])
    status, out = container.ask("ss")
    assert status == 0 and {line.split()[-2] for line in out.splitlines()[1:]} == {"-", str(container.own)}, out
    assert container.pids("ss", f"pid = {container.own}") == [container.own]
    assert container.pids("ss", f"pid = {container.here}") == []
    rows = [line for line in container.ask("top", "--once")[1].splitlines() if "python" in line]
    assert sorted(int(row.split()[0]) for row in rows) == [0, container.own]
    assert f" {container.own}/python" in container.ask("events")[1]
    status, out = container.ask("linkgroup")
    assert f"{container.own}/python" in out and f"{container.here}/" not in out, out


def test_what_is_named_in_a_container_is_named_as_there(container):
    status, out = container.ask("explain", container.own)
    assert status == 0 and out.startswith(f"{container.own}:") and f"(PID {container.own}) talks as server" in out, out
    status, out = container.ask("explain", container.here)
    assert status == 1 and f"no watched connection (PID {container.here})" in out and "another pid namespace" in out, out
    status, out = container.ask("explain", 0)
    assert status == 1, out
    status, out = container.ask("chk", f"127.0.0.1:{container.port}")
    assert status == 0 and f"PID {container.own}" in out and "the process has a session" in out, out
    status, out = container.ask("revoke", container.own)
    assert (status, out) == (0, f"asked {container.own} to go back to TCP\n"), out
    container.talk()
    revoked = lambda: [event for event in map(json.loads, container.accel.broker.tool("events", "--json").splitlines())
                       if event["event"] == "revoked"]  # fmt: skip
    until(revoked, lambda: container.accel.broker.tool("events"))


def test_a_forked_child_is_not_called_by_a_number_of_another_namespace(world):
    """The arena has what the child calls itself; that was shown on the host."""
    program = """
import os, socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"x"); connection.recv(9)
if os.fork() == 0:
    for _ in range(50):
        connection.sendall(b"x"); connection.recv(9)
    print("ready", flush=True)
    sys.stdin.read()
else:
    connection.close()
    os.wait()
"""
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    accel.server("server", [sys.executable, "-c", SERVER, port]).wait_listening(port)
    env = {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    argv = [*CONTAINER, world.binary, "run", "--eager", "--", sys.executable, "-c", program, port]
    client = world.start("client", argv, env=env, stdin=subprocess.PIPE)
    until(lambda: "ready" in client.out, client.describe)
    here, _ = own_pid(client)
    family = {0, here, *map(int, open(f"/proc/{here}/task/{here}/children").read().split())}
    ends = [end for end in accel.broker.connections() if end["role"] == "client"]
    assert ends and {end["pid"] for end in ends} <= family, (ends, family)
    client.kill()


def test_a_broker_in_a_container_is_asked_from_the_host(world):
    """As the operator of the machine does: what runs there has the host's numbers."""
    broker = world.directory / "inside.sock"
    port = free_port()
    shell = f"""
{world.binary} broker --private --socket {broker} &
until [ -S {broker} ]; do sleep 0.02; done
export SHUNPIKE_SOCKET={broker}
exec {world.binary} run --eager -- {sys.executable} -c '{SERVER}' {port}
"""
    env = world.env | {"SHUNPIKE_SOCKET": str(broker)}
    server = world.start("server", [*CONTAINER, "sh", "-c", shell], env=env)
    server_is_there = lambda: subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True).stdout  # noqa: E731
    until(server_is_there, server.describe)
    here, own = own_pid(server)
    client = world.start("client", ["nsenter", "-t", str(here), "--pid", "--mount", "--", world.binary, "run", "--eager", "--",
                                    sys.executable, "-c", CLIENT, port], env=env, stdin=subprocess.PIPE)  # fmt: skip
    client.popen.stdin.write(b"1 100 50\n")
    client.popen.stdin.flush()
    until(lambda: "done" in client.out, client.describe)
    ask = lambda *words: subprocess.run([world.binary, *map(str, words)], env=env, capture_output=True, text=True, timeout=30)  # noqa: E731
    rows = json.loads(ask("ss", "--json").stdout)["connections"]
    assert here in {row["pid"] for row in rows} and own not in {row["pid"] for row in rows}, rows
    assert ask("explain", here).stdout.startswith(f"{here}:") and ask("explain", own).returncode == 1
    client.kill()
    server.kill()
