"""The policy read again: taken as a whole or not at all, by those who may, and what becomes of the lanes that it forbids."""

import json
import os
import pty
import re
import signal
import subprocess

import pytest

from harness import BINARY
from netns import needs_root
from procs import finish_together, free_port, until
from test_users import ANY, NOBODY, OTHER, SAME, ask, several, user  # noqa: F401

pytestmark = [pytest.mark.users, needs_root]


def policy_file(accel):
    return accel.world.directory / "broker.toml"


def in_force(accel):
    return json.loads(accel.broker.tool("policy", "show", "--json"))


def reload(accel, how):
    """By each way there is. What a signal does is not waited for."""
    if how == "HUP":
        os.kill(accel.broker.proc.pid, signal.SIGHUP)
    else:
        accel.broker.tool("policy", "reload")


def talk(accel, bed, rounds):
    """Two users' ends of one connection; what they say is compared with what the other should have said."""
    port = free_port()
    server = accel.start_as("server", user(NOBODY), [bed / "pingpong", "server", port, 1, rounds]).wait_listening(port)
    return server, accel.start_as("client", user(OTHER), [bed / "pingpong", "client", port, 1, rounds])


def test_programs_of_a_name_have_settings_of_their_own(several, bed):  # noqa: F811
    """Those named get no lane, as they would have to say more; all others do. A reload is heard of at once."""
    quiet = "[program.pingpong]\nnominate_calls = 65535\nnominate_bytes = 1073741824\n"
    accel = several(quiet)
    shown = json.loads(accel.broker.tool("sysctl", "--json"))["programs"]
    assert {(one["program"], one["name"]) for one in shown} == {("pingpong", "nominate_calls"), ("pingpong", "nominate_bytes")}
    assert "pingpong" in accel.broker.tool("sysctl", "-a")
    port, env = free_port(), {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    start = lambda name, argv: accel.world.start(name, [accel.world.binary, "run", "--", *argv], env=env)  # noqa: E731
    server = start("server", [bed / "pingpong", "server", port, 1, 1_000_000]).wait_listening(port)
    client = start("client", [bed / "pingpong", "client", port, 1, 1_000_000])
    calls = lambda: [end["tx"]["tcp_bytes"] for end in accel.broker.connections()]  # noqa: E731
    until(lambda: calls() and min(calls()) > 100_000, lambda: accel.broker.connections())
    assert not accel.broker.stats().smc
    policy_file(accel).write_text("")
    accel.broker.tool("policy", "reload")
    until(lambda: accel.broker.stats().lanes, lambda: accel.broker.connections())
    client.kill()
    server.stop()


def end_of(accel, process):
    return next((row for row in accel.broker.connections() if row["pid"] == process.pid), None)


@pytest.mark.parametrize("how", ["HUP", "tool"])
def test_lanes_that_a_new_policy_forbids_go_back_to_tcp_without_a_byte_lost(several, bed, how):  # noqa: F811
    accel = several(ANY)
    server, client = talk(accel, bed, 10_000)
    until(lambda: accel.broker.stats().lanes, "a lane between two users")
    policy_file(accel).write_text("# as it was before\n\n" + SAME)
    reload(accel, how)
    until(lambda: in_force(accel)["peers"] == "same-user", "the new policy")
    until(lambda: (end := end_of(accel, client)) and end["mode"].startswith("TCP 0x0a010003") and end, "the end on TCP, refused")
    told = json.loads(accel.broker.tool("explain", str(client.pid), "--json"))["explanations"][0]
    assert f"policy is same-user ({policy_file(accel)}, line 4)" in told["advice"], told
    assert 'allow = "any"' in told["advice"] and "policy reload" in told["advice"], told
    finish_together(client, server)
    assert accel.broker.stats().smc == 2, "no lane opened again"


def test_users_whom_a_new_policy_joins_get_lanes(several, bed):  # noqa: F811
    accel = several("")
    server, client = talk(accel, bed, 500)
    finish_together(client, server)
    assert accel.broker.stats().smc == 0 and in_force(accel)["line"] is None
    policy_file(accel).write_text(ANY)
    out = accel.broker.tool("policy", "reload")
    assert re.search(r"Policy\s+any \(.*broker.toml, line 2\)", out) and re.search(r"Changed\s+yes", out), out
    server, client = talk(accel, bed, 500)
    accel.verify(lanes=1)
    finish_together(client, server)


@pytest.mark.parametrize("how", ["HUP", "tool"])
def test_a_file_with_a_mistake_changes_nothing_and_says_where_it_is(several, how):  # noqa: F811
    accel = several('[socket]\nmode = "0666"\n' + ANY)
    before = in_force(accel)
    # All that could be taken comes before the mistake.
    faulty = '[socket]\nmode = "0600"\n[sysctl]\nspin_us = 5\n[peers]\nallow = "everyone"\n'
    policy_file(accel).write_text(faulty)
    where = f"{policy_file(accel)}, line 6 (allow = \"everyone\"): unknown variant `everyone`"
    if how == "HUP":
        reload(accel, how)
        until(lambda: where in accel.broker.proc.err, lambda: f"the mistake in the log: {accel.broker.proc.err}")
    else:
        status, out = ask(accel, user(0), "policy", "reload")
        assert status == 1 and where in out and "nothing has changed" in out, out
        status, out = ask(accel, user(0), "policy", "check", str(policy_file(accel)))
        assert status == 1 and where in out, out
    assert in_force(accel) == before
    assert accel.broker.socket.stat().st_mode & 0o777 == 0o666
    assert accel.broker.tool("sysctl", "spin_us") == "spin_us = 30\n"


def test_all_of_a_file_is_taken_but_what_has_precedence_over_it(several):  # noqa: F811
    accel = several('[sysctl]\ngrace_ms = 50\nspin_us = 5\nwmem = "64K"\n', "--set", "spin_us=7")
    accel.broker.tool("sysctl", "-w", "wmem=128K")
    policy_file(accel).write_text(
        '[socket]\nmode = "0660"\ngroup = "nogroup"\n[limits.process]\ndmbs = 77\n[sysctl]\nspin_us = 9\nwmem = "32K"\nnominate_calls = 3\n'
        '[metrics]\nlisten = "127.0.0.1:9999"\n'
    )
    answer = json.loads(accel.broker.tool("policy", "reload", "--json"))
    assert sorted(answer["settings"]) == ["grace_ms=100", "nominate_calls=3"], answer
    assert len(answer["notes"]) == 1 and "[metrics]" in answer["notes"][0] and answer["policy"]["process"]["dmbs"] == 77, answer
    status = accel.broker.socket.stat()
    assert status.st_mode & 0o777 == 0o660 and status.st_gid == 65534
    values = [accel.broker.tool("sysctl", name).split()[-1] for name in ("grace_ms", "spin_us", "wmem", "nominate_calls")]
    assert values == ["100", "7", "131072", "3"], values
    again = json.loads(accel.broker.tool("policy", "reload", "--json"))
    assert not again["changed"] and again["settings"] == [], again


def test_only_the_operator_reloads(several):  # noqa: F811
    accel = several(SAME)
    policy_file(accel).write_text(ANY)
    for who, why in [(user(NOBODY), "uid 65534"), (["unshare", "--pid", "--fork", "--mount-proc"], "a container's root")]:
        status, out = ask(accel, who, "policy", "reload")
        assert status == 1 and f"not permitted ({why})" in out, out
    assert in_force(accel)["peers"] == "same-user"
    policy_file(accel).chmod(0o666)
    status, out = ask(accel, user(0), "policy", "reload")
    assert status == 1 and "only its owner can write to" in out, out


def test_a_broker_whose_terminal_goes_away_ends(world):
    """The kernel's SIGHUP is no wish to have the policy read again."""
    socket = world.directory / "b.sock"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(BINARY, [str(BINARY), "broker", "--private", "--socket", str(socket)], world.env)
    until(socket.exists, "it serves")
    os.close(terminal)
    status = until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")
    assert status and not socket.exists()


def test_check_needs_no_broker(world):
    file = world.directory / "broker.toml"
    file.write_text(ANY + "[sysctl]\nspin_us = 5\n")
    result = subprocess.run([BINARY, "policy", "check", file], env=world.env, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and re.search(r"any \(.*line 2\)", result.stdout) and re.search(r"spin_us\s+5", result.stdout), result
