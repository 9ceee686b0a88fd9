"""A client, a server or the broker dies at any system call of its life: kill -9 between two of them, at each side of
each. What is left goes on as on TCP, and nothing of the dead stays anywhere. CRASH_ROUNDS and CRASH_SEED: `make crash`."""

import os
import random
import subprocess

import pytest

from harness import Accel
from procs import free_port, until

pytestmark = pytest.mark.crash
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("CRASH_SEED", random.randrange(1 << 32)))


def moment(dice):
    """Calls are dense where something happens: half of the moments lie in the first thousand."""
    return dice.randrange(1, 1000) if dice.random() < 0.5 else dice.randrange(1000, 20000)


def lets_go(accel, what):
    until(lambda: accel.broker.stats().smc >= 0 and accel.broker.holds_nothing(), lambda: f"{what}: {accel.broker.what_it_holds()}", seconds=30)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_client_killed(world, bed, number):
    """The server serves the next one, and the broker holds nothing of the dead once the server has gone."""
    dice, accel, port = random.Random(f"{SEED} client {number}"), Accel(world, "both"), free_port()
    server = accel.server("server", [bed / "echo", "server", dice.choice(["lt", "et", "poll"]), port, 1 << 30]).wait_listening(port)
    at = moment(dice)
    print(f"seed {SEED}: killed at stop {at}")
    client = world.start("client", [bed / "killat", at, world.binary, "run", "--", bed / "soak", port, 4, 1],
                         env={"SHUNPIKE_SOCKET": str(accel.broker.socket)})  # fmt: skip
    client.finish(60)
    accel.client("next", [bed / "echo", "client", port, 2, 60]).finish(60)
    assert server.popen.poll() is None, server.describe()
    server.kill()
    lets_go(accel, "after a killed client")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_server_killed(world, bed, number):
    """Its client sees TCP's end, not a hang; the broker holds nothing of either."""
    dice, accel, port = random.Random(f"{SEED} server {number}"), Accel(world, "both"), free_port()
    at = 300 + moment(dice)
    print(f"seed {SEED}: killed at stop {at}")
    server = world.start("server", [bed / "killat", at, world.binary, "run", "--", bed / "echo", "server", "lt", port, 1 << 30],
                         env={"SHUNPIKE_SOCKET": str(accel.broker.socket)})  # fmt: skip
    clients = 0
    while server.popen.poll() is None and clients < 40:
        client = accel.client("client", [bed / "echo", "client", port, 3, 60])
        clients += 1
        try:
            client.popen.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a client hangs: {client.describe()}") from None
        # 0: it was done; 70, 71: the bed's word for what TCP told it.
        assert client.popen.returncode in (0, 70, 71), client.describe()
    server.kill()
    lets_go(accel, "after a killed server")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_broker_killed(world, bed, number):
    """Under load: no byte is lost, and connections go on."""
    dice, accel, port = random.Random(f"{SEED} broker {number}"), Accel(world, "tcp"), free_port()
    at = 500 + moment(dice)
    print(f"seed {SEED}: killed at stop {at}")
    socket = world.directory / "mortal.sock"
    broker = world.start("mortal", [bed / "killat", at, world.binary, "broker", "--socket", socket])
    until(lambda: socket.exists() or broker.popen.poll() is not None, "it serves, or is dead")
    env = {"SHUNPIKE_SOCKET": str(socket)}
    run = [world.binary, "run", "--"]
    server = world.start("server", [*run, bed / "echo", "server", "lt", port, 1 << 30], env=env).wait_listening(port)
    for _ in range(3):
        world.start("client", [*run, bed / "soak", port, 8, 1], env=env).finish(60)
    assert server.popen.poll() is None, server.describe()
    broker.kill()
    accel.verify()
