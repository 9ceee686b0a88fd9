"""Two brokers: a private one that was there before the system's, and programs that move. The system's has its own /run, in a mount
namespace of the test."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import BINARY, LIBRARY
from netns import needs_root
from procs import free_port, until

pytestmark = [pytest.mark.operators, needs_root]


def lanes_of(connections):
    return sum(row["mode"] == "SMCD" for row in connections)


def dialogue(world, bed, port, env, inside=(), run=()):
    """Two programs with a connection that stays busy."""
    start = lambda role: world.start(role, [*inside, *run, bed / "pingpong", role, port, 1, 10**7], env=env)
    server = start("server")
    until(lambda: is_listening(port), "it listens")
    return [server, start("client")]


def is_listening(port):
    lines = open("/proc/net/tcp").read().splitlines()[1:]
    return any(line.split()[3] == "0A" and int(line.split()[1].rsplit(":", 1)[1], 16) == port for line in lines)


def ended(proc):
    return proc.popen.poll() is not None


def end(procs):
    """Programs that must be at work still."""
    assert not any(ended(proc) for proc in procs), [proc.describe() for proc in procs]
    for proc in reversed(procs):
        proc.stop()


def test_programs_move_to_the_broker_that_they_prefer(world, bed):
    """With their open lanes, and without a hole for new connections: the private broker leaves when the other one serves."""
    preferred = world.directory / "system" / "broker.sock"
    preferred.parent.mkdir()
    private = world.broker("--yield-to", preferred, name="private")
    env = {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(private.socket), "SHUNPIKE_PREFER": str(preferred)}
    procs = dialogue(world, bed, free_port(), env)
    until(lambda: lanes_of(private.connections()) == 2, "lanes by the private broker")
    system = world.broker(name="system/broker")
    until(lambda: ended(private.proc), lambda: f"the private one makes room: {private.proc.describe()}")
    assert private.proc.popen.returncode == 0
    until(lambda: lanes_of(system.connections()) == 2, lambda: f"both have come with their lanes: {system.connections()}")
    more = dialogue(world, bed, free_port(), env)
    until(lambda: lanes_of(system.connections()) == 4, lambda: f"new connections have lanes: {system.connections()}")
    end(procs + more)


@pytest.mark.parametrize("who", ["foreign", "nobody"])
def test_a_private_broker_stays_where_its_programs_could_not_go(world, who):
    """At the place of the preferred one is nobody, or somebody to whom they would say nothing."""
    preferred = world.directory / "system" / "broker.sock"
    preferred.parent.mkdir()
    if who == "foreign":
        world.broker(name="system/broker")
        preferred.parent.chmod(0o777)
    private = world.broker("--yield-to", preferred, name="private")
    time.sleep(2.2)  # it looks once in a second
    assert not ended(private.proc)


class Machine:
    """A mount namespace whose /run is its own: another system, as far as brokers go."""

    def __init__(self, world):
        self.world = world
        script = "mount -t tmpfs none /run && echo ready && exec sleep 1000"
        self.holder = world.start("machine", ["unshare", "--mount", "sh", "-c", script])
        until(lambda: "ready" in self.holder.out, "it has a /run of its own")
        self.inside = ["nsenter", f"--target={self.holder.pid}", "--mount", "--"]

    def tool(self, *arguments, **more):
        return subprocess.run([*self.inside, BINARY, *arguments], env=self.world.env, capture_output=True, text=True, timeout=60, **more)

    def broker(self):
        return self.world.start("system", [*self.inside, BINARY, "broker"])

    def end_private(self):
        """It would wait for ten seconds whether somebody comes."""
        socket = self.world.runtime / "shunpike" / "broker.sock"
        os.kill(json.loads(self.tool("--socket", socket, "info", "--json").stdout)["pid"], signal.SIGTERM)
        until(lambda: not socket.exists(), "the private broker has gone")

    def connections(self):
        result = self.tool("ss", "--json")
        return json.loads(result.stdout)["connections"] if result.returncode == 0 else []


@pytest.fixture
def machine(world):
    world.cleanups.append(lambda: shutil.rmtree(world.runtime / "shunpike", ignore_errors=True))
    return Machine(world)


def test_run_starts_a_private_broker_and_moves(world, bed, machine):
    procs = dialogue(world, bed, free_port(), {}, machine.inside, [BINARY, "run", "--"])
    until(lambda: lanes_of(machine.connections()) == 2, "lanes by a private broker")
    assert str(world.runtime) in machine.tool("info").stdout
    system = machine.broker()
    until(lambda: "/run/shunpike" in machine.tool("info").stdout, "the system's serves")
    until(lambda: lanes_of(machine.connections()) == 2, lambda: f"they have moved: {machine.connections()}")
    until(lambda: not (world.runtime / "shunpike" / "broker.sock").exists(), "the private one has left")
    end(procs)
    system.stop()


def test_run_waits_for_the_systems_broker_or_insists_on_it(world, machine):
    shows = ["--", "sh", "-c", "echo $SHUNPIKE_SOCKET,$SHUNPIKE_PREFER"]
    refused = machine.tool("run", "--broker=system", *shows)
    assert refused.returncode == 125 and "system's broker does not serve" in refused.stderr and refused.stdout == ""
    waits = world.start("waits", [*machine.inside, BINARY, "run", "--wait=60", *shows])
    insists = world.start("insists", [*machine.inside, BINARY, "run", "--broker=system", "--wait=60", *shows])
    until(lambda: all(b"--wait=60" in open(f"/proc/{proc.pid}/cmdline", "rb").read() and not ended(proc) for proc in (waits, insists)), "both wait")
    assert not (world.runtime / "shunpike").exists(), "no private broker was started"
    system = machine.broker()
    assert waits.finish() == insists.finish() == "/run/shunpike/broker.sock,\n"
    assert machine.tool("run", *shows).stdout == "/run/shunpike/broker.sock,\n"
    twice = machine.tool("--socket", "/nowhere", "run", "--broker=private", *shows)
    assert twice.returncode == 125 and "--socket" in twice.stderr
    system.stop()


def test_a_private_broker_that_is_asked_for_stays(world, machine):
    system = machine.broker()
    until(lambda: machine.tool("info").returncode == 0, "the system's serves")
    own = world.runtime / "shunpike" / "broker.sock"
    program = world.start("program", [*machine.inside, BINARY, "run", "--broker=private", "sh", "-c", "echo $SHUNPIKE_SOCKET,$SHUNPIKE_PREFER; exec sleep 1000"])
    until(lambda: program.out == f"{own},\n", lambda: program.describe())
    time.sleep(2.2)  # one that would leave looks once in a second
    assert own.exists()
    program.stop()
    machine.end_private()
    system.stop()


def test_chk_tells_two_brokers_of_one_name_apart(world, bed, machine):
    """Two mount namespaces: each has a broker at /run/shunpike, and the connection between them gets no lane."""
    other = Machine(world)
    brokers = [machine.broker(), other.broker()]
    for where in (machine, other):
        until(lambda where=where: where.tool("info").returncode == 0, "it serves")
    port = free_port()
    server = world.start("server", [*other.inside, BINARY, "run", "--", bed / "pingpong", "server", port, 1, 10**7])
    until(lambda: is_listening(port), "it listens")
    here, there = machine.tool("chk", f"127.0.0.1:{port}"), other.tool("chk", f"127.0.0.1:{port}")
    assert there.returncode == 0, there
    assert here.returncode == 1 and "another broker of that name" in here.stdout, here
    server.stop()
    for broker in brokers:
        broker.stop()


def test_chk_tells_that_two_brokers_serve(world, bed, machine):
    """The server stays with its own, which somebody has asked for."""
    port = free_port()
    server = world.start("server", [*machine.inside, BINARY, "run", "--broker=private", "--", bed / "pingpong", "server", port, 1, 10**7])
    until(lambda: is_listening(port), "it listens")
    system = machine.broker()
    until(lambda: "/run/shunpike" in machine.tool("info").stdout, "the system's serves")
    check = machine.tool("chk", f"127.0.0.1:{port}")
    assert check.returncode == 1 and "two serve here" in check.stdout and str(world.runtime) in check.stdout, check
    server.stop()
    machine.end_private()
    system.stop()
