"""`shunpike events`: what became of connections, why, after how long; who sees which; and that the broker keeps no more than it says."""

import json
import subprocess
import time

import pytest

from harness import Accel
from netns import needs_root
from procs import finish_together, free_port, until
from test_users import ANY, NOBODY, OTHER, ask, several, user  # noqa: F401

pytestmark = pytest.mark.users


def events(accel, *arguments, who=None):
    if who is None:
        out = accel.broker.tool("events", "--json", *map(str, arguments))
    else:
        status, out = ask(accel, who, "events", "--json", *map(str, arguments))
        assert status == 0, out
    return [json.loads(line) for line in out.splitlines()]


def kinds(found):
    return [(event["event"], event["reason"] and event["reason"]["key"]) for event in found]


def dialogue(accel, bed, rounds, start=None):
    port = free_port()
    start = start or {"server": accel.server, "client": accel.client}
    server = start["server"]("server", [bed / "pingpong", "server", port, 1, rounds]).wait_listening(port)
    return port, server, start["client"]("client", [bed / "pingpong", "client", port, 1, rounds])


@pytest.fixture
def accel(world):
    return Accel(world, "both", ["--eager"])


def test_a_connection_that_opens_and_ends_is_opened_and_closed(accel, bed):
    port, server, client = dialogue(accel, bed, 300)
    finish_together(client, server)
    found = until(lambda: len(found := events(accel)) == 2 and found, lambda: f"two events: {events(accel)}")
    assert kinds(found) == [("opened", None), ("closed", None)]
    opened, closed = found
    assert opened["number"] < closed["number"] and abs(opened["time_ms"] / 1000 - time.time()) < 60
    assert 0 < opened["after_us"] < 30e6 and 0 < closed["after_us"] < 60e6
    ends = {end["role"]: end for end in opened["ends"]}
    assert ends["server"]["local"].endswith(f":{port}") and ends["client"]["remote"].endswith(f":{port}")
    assert [ends[role]["comm"] for role in ("client", "server")] == ["pingpong", "pingpong"]
    assert ends["client"]["pid"] == client.pid and ends["server"]["pid"] == server.pid


def test_one_that_goes_on_on_tcp_is_revoked_and_no_other_is(accel, bed):
    """Ordinary ends of connections are none, whichever end closes first."""
    port, server, client = dialogue(accel, bed, 6_000)
    until(lambda: kinds(events(accel)) == [("opened", None)], "an open lane")
    accel.broker.tool("revoke", str(client.pid))
    revoked = until(lambda: [e for e in events(accel) if e["event"] == "revoked"], lambda: f"revoked: {kinds(events(accel))}")[0]
    assert (revoked["reason"]["key"], revoked["by"]) == ("revoked", "client") and revoked["after_us"] > 0, revoked
    finish_together(client, server)
    until(accel.broker.holds_nothing, accel.broker.what_it_holds)
    # A busy machine may send it back once more, as an end does not run for long.
    after = [kind for kind in kinds(events(accel)) if kind != ("revoked", "grace_exceeded")]
    assert after.count(("revoked", "revoked")) == 1 and not [k for k in after if k[0] == "revoked" and k[1] != "revoked"], after


def test_connections_that_close_are_not_counted_as_revoked(accel):
    """The end of a lane comes before FIN: whoever looked in between counted a close (a sixth of these)."""
    port = free_port()
    accel.server("server", ["redis-server", "--port", port, "--save", ""]).wait_listening(port)
    accel.client("client", ["redis-benchmark", "-p", port, "-n", 20000, "-c", 50, "-t", "get,set"]).finish()
    counts = json.loads(accel.broker.tool("stats", "--json"))["connections"]
    # A busy machine may send one back, as its other end does not run for long; that is told of.
    revoked = [event for event in events(accel) if event["event"] == "revoked"]
    assert counts["smc"] >= 2 * 100 and counts["revoked"] <= 2 * len(revoked) < 20, (counts, revoked)


def test_one_whose_program_is_killed_is_closed(accel, bed):
    port, server, client = dialogue(accel, bed, 1_000_000)
    until(lambda: kinds(events(accel)) == [("opened", None)], "an open lane")
    client.kill()
    server.stop()
    until(lambda: kinds(events(accel)) == [("opened", None), ("closed", None)], lambda: f"its end: {kinds(events(accel))}")


def test_filters_and_the_number_of_lines(accel, bed):
    ports = []
    for _ in range(2):
        port, server, client = dialogue(accel, bed, 300)
        finish_together(client, server)
        ports.append(port)
    until(lambda: len(events(accel)) == 4, lambda: f"four events: {kinds(events(accel))}")
    of_one = events(accel, f"dport = :{ports[0]}")
    assert kinds(of_one) == [("opened", None), ("closed", None)], of_one
    assert events(accel, "-n", 1) == events(accel)[-1:] and events(accel, "-n", 1, f"sport = :{ports[0]}") == of_one[-1:]
    table = accel.broker.tool("events").splitlines()
    assert table[0].split() == ["Time", "Event", "After", "Client", "Server", "Why"] and len(table) == 5, table


def test_follow_tells_of_those_that_come(accel, bed):
    world = accel.world
    port, server, client = dialogue(accel, bed, 300)
    finish_together(client, server)
    until(lambda: len(events(accel)) == 2, "two events")
    env = world.env | {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    follower = subprocess.Popen([world.binary, "events", "-f", "-n", "1", "--json"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(follower.stdout.readline())["event"] == "closed"
        port, server, client = dialogue(accel, bed, 300)
        finish_together(client, server)
        told = [json.loads(follower.stdout.readline()) for _ in range(2)]
        assert kinds(told) == [("opened", None), ("closed", None)] and told[0]["ends"][0]["remote"].endswith(f":{port}")
    finally:
        follower.kill()
        follower.wait()


@needs_root
def test_each_sees_what_is_of_its_own_user(several, bed):  # noqa: F811
    accel = several(ANY)
    as_users = {
        "server": lambda name, argv: accel.start_as(name, user(NOBODY), argv),
        "client": lambda name, argv: accel.start_as(name, user(OTHER), argv),
    }
    port, server, client = dialogue(accel, bed, 300, as_users)
    finish_together(client, server)
    until(lambda: len(events(accel)) == 2, lambda: f"two events: {kinds(events(accel))}")
    roles = lambda who: [[end["role"] for end in event["ends"]] for event in events(accel, who=who)]  # noqa: E731
    assert roles(user(0)) == [["client", "server"]] * 2
    assert roles(user(NOBODY)) == [["server"]] * 2 and roles(user(OTHER)) == [["client"]] * 2
    assert roles(user(OTHER + 1)) == []
    elsewhere = ["unshare", "--net", "--", *user(OTHER)]
    assert roles(elsewhere) == [], "another network namespace"


@needs_root
def test_whom_policy_keeps_apart_fell_back(several, bed):  # noqa: F811
    accel = several("")
    as_users = {
        "server": lambda name, argv: accel.start_as(name, user(NOBODY), argv),
        "client": lambda name, argv: accel.start_as(name, user(OTHER), argv),
    }
    port, server, client = dialogue(accel, bed, 300, as_users)
    finish_together(client, server)
    found = events(accel)
    assert found and set(kinds(found)) == {("fell back", "not_permitted")}, found
    assert found[0]["by"] is None and {end["role"] for end in found[0]["ends"]} == {"client", "server"}
