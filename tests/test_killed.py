"""A client, a server or the broker dies at any system call of its life: kill -9 between two of them, at each side of
each; and any two of them, or all. What is left goes on as on TCP, and nothing of the dead stays anywhere. CRASH_ROUNDS and
CRASH_SEED: `make crash`."""

import os
import random
import subprocess

import pytest

from harness import Accel
from procs import free_port, listens, until

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


SEVERAL = [{"client", "server"}, {"client", "broker"}, {"server", "broker"}, {"client", "server", "broker"}]


@pytest.mark.parametrize("number", range(ROUNDS))
def test_several_killed(world, bed, number):
    """Each at a moment of its own. A server that is left serves whoever comes, a client that is left ends as on TCP."""
    dice, doomed, port = random.Random(f"{SEED} several {number}"), SEVERAL[number % len(SEVERAL)], free_port()
    moments = {who: moment(dice) + 300 * (who != "client") for who in sorted(doomed)}
    print(f"seed {SEED}: killed at stops {moments}")

    def start(who, *argv):
        prefix = [bed / "killat", moments[who]] if who in doomed else []
        return world.start(who, [*prefix, *argv], env={"SHUNPIKE_SOCKET": str(socket)})

    is_over = lambda proc: proc.popen.poll() is not None
    if "broker" in doomed:
        socket = world.directory / "mortal.sock"
        broker = start("broker", world.binary, "broker", "--socket", socket)
        until(lambda: socket.exists() or is_over(broker), "it serves, or is dead")
    else:
        accel = Accel(world, "both")
        socket, broker = accel.broker.socket, None
    run = (world.binary, "run", "--")
    server = start("server", *run, bed / "echo", "server", "lt", port, 1 << 30)
    until(lambda: listens(server.pid, port) or is_over(server), "it listens, or is dead")
    client = start("client", *run, bed / "soak", port, 6, 1)
    try:
        client.popen.wait(60)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the client hangs: {client.describe()}") from None
    if "client" not in doomed:
        # 70, 71: the bed's word for what TCP told it of its server's end.
        assert client.popen.returncode in ((0,) if "server" not in doomed else (0, 70, 71)), client.describe()
    if "server" not in doomed:
        world.start("next", [bed / "echo", "client", port, 2, 60]).finish(60)
        assert not is_over(server), server.describe()
    server.kill()
    if broker:
        broker.kill()
    else:
        lets_go(accel, "after several deaths")
