"""What an operator sees: the views of smc-tools on lanes that are there, `chk`, `dbg`, and the names of smc-tools."""

import json
import os
import re
import subprocess
import sys
import tarfile

import pytest

from harness import ROOT, TARGET, Accel
from netns import needs_root
from operators import SERVER as SERVER_SOURCE_OF_PAIR
from operators import Pair, asked
from procs import free_port, until

pytestmark = pytest.mark.operators


def table(text):
    """A tool's table: one dictionary for each row."""
    heading, *rows = [line.replace("TCP 0x", "TCP-0x").split() for line in text.splitlines()]
    return [dict(zip(heading, row, strict=True)) for row in rows]


def test_all_cursors_and_flags_of_a_lane_are_shown(world):
    pair = Pair(world)
    pair.has("SMCD")
    rows = {row["PID"]: row for row in table(pair.broker.tool("ss", "-d"))}
    client, server = rows[str(pair.client.pid)], rows[str(pair.server.pid)]
    assert client["Shutd"] == server["Shutd"] == "<->"
    assert client["Token"] != server["Token"] and int(client["Rcvbuf"], 16) == int(server["Peerbuf"], 16) == 8 << 20
    # Quiet: all that one produced the other has consumed, and both ends see the same.
    for sent, got in ((client, server), (server, client)):
        assert sent["txprod-Cursor"] == sent["txcons-Cursor"] == sent["txfin-Cursor"] != "0000:00000000"
        assert sent["txprod-Cursor"] == got["rxprod-Cursor"] and sent["txcons-Cursor"] == got["rxcons-Cursor"]
        assert sent["txFlags"] == got["rxFlags"] == "00:00"
    dmbs = {row["Token"]: row for row in table(pair.broker.tool("ss", "-D"))}
    assert dmbs[client["Token"]]["Peer-Token"] == server["Token"] and len(dmbs) == 2
    (group,) = {row["Linkid"] for row in dmbs.values()}
    assert {row["GID"] for row in dmbs.values()} == {row["Peer-GID"] for row in dmbs.values()}
    (shown,) = table(pair.broker.tool("linkgroup", "show", group))
    assert shown["#Conns"] == "1" and shown["Client"].startswith(f"{pair.client.pid}/")
    sides = table(pair.broker.tool("linkgroup", "link-show"))
    assert [(row["LG-ID"], row["LG-Role"], row["Link-State"]) for row in sides] == [
        (group, "CLNT", "LINK_ACTIVE"), (group, "SERV", "LINK_ACTIVE")]  # fmt: skip
    listed = lambda *words: {row["PID"] for row in table(pair.broker.tool("ss", *words))}
    port = client["Peer-Address"].rpartition(":")[2]
    assert listed(f"sport = :{port} and state lane") == {str(pair.server.pid)} and listed(f"not sport = :{port}") == {str(pair.client.pid)}
    assert listed("pid", "=", str(pair.client.pid), "or", "comm", server["Command"]) == {str(pair.client.pid), str(pair.server.pid)}
    assert [one["pid"] for one in json.loads(pair.broker.tool("ss", "--json", f"dport :{port}"))["connections"]] == [pair.client.pid]
    assert pair.broker.tool("ss", "-R").count("\n") == 1
    rows = lambda *words: [line.split() for line in pair.broker.tool("ss", *words).splitlines()]
    assert rows("-tnpH") == rows()[1:]
    assert pair.broker.tool("ss", "-RH") == ""
    pair.close()


FEW = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(int(sys.argv[2])):
    connection.sendall(b"x")
    connection.recv(1)
print("quiet", flush=True)
sys.stdin.readline()
"""


def test_a_connection_whose_program_has_a_session_has_not_missed_the_broker(world):
    """The one whose exchanges were over before the broker's welcome was read said "no broker reached", to the broker's own tools."""
    accel, port = Accel(world, "client"), free_port()
    world.start("server", [sys.executable, "-c", SERVER_SOURCE_OF_PAIR, port]).wait_listening(port)
    orders, told = os.pipe()
    few = [accel.client(f"few{count}", [sys.executable, "-c", FEW, port, count], stdin=orders) for count in range(8, 16)]
    os.close(orders)
    for client in few:
        until(lambda client=client: client.out == "quiet\n", client.describe)
    until(lambda: len(table(accel.broker.tool("ss"))) == len(few), lambda: accel.broker.tool("ss"))
    assert "0a010000" not in accel.broker.tool("ss"), accel.broker.tool("ss")
    os.close(told)


WRITER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(20):
    connection.sendall(b"x")
    connection.recv(1)
print("ready", flush=True)
connection.sendall(bytes(64 << 20))
"""

READER = """
import socket, sys
connection, _ = socket.create_server(("127.0.0.1", int(sys.argv[1]))).accept()
for _ in range(20):
    connection.recv(1)
    connection.sendall(b"y")
sys.stdin.readline()
"""


def test_a_writer_that_waits_for_room_is_seen_as_blocked(world):
    accel, port = Accel(world, "both", ["--eager"], ("--set", "grace_ms=60000")), free_port()
    orders, writer = os.pipe()
    server = accel.server("server", [sys.executable, "-c", READER, port], stdin=orders).wait_listening(port)
    os.close(orders)
    client = accel.client("client", [sys.executable, "-c", WRITER, port])
    flags = lambda: {row["PID"]: (row["txFlags"], row["rxFlags"]) for row in table(accel.broker.tool("ss", "-d"))}
    wanted = {str(client.pid): ("90:00", "00:00"), str(server.pid): ("00:00", "90:00")}
    until(lambda: flags() == wanted, lambda: f"write_blocked from both ends: {flags()}", seconds=20)
    client.kill()
    os.close(writer)


QUIET = """
import socket, sys, time
port = int(sys.argv[1])
for rounds in (50, 1):
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(rounds):
        connection.sendall(b"x")
        connection.recv(1)
    if rounds == 50:
        connection.close()
print("%s:%d" % connection.getsockname(), flush=True)
sys.stdin.readline()
"""


def test_a_connection_that_said_too_little_for_a_lane_has_its_own_addresses(world):
    """It was shown with those of the connection that had been in its place before, or with none."""
    accel, port = Accel(world, "client"), free_port()
    world.start("server", [sys.executable, "-c", SERVER_SOURCE_OF_PAIR, port]).wait_listening(port)
    orders, told = os.pipe()
    client = accel.client("client", [sys.executable, "-c", QUIET, port], stdin=orders)
    os.close(orders)
    own = until(lambda: client.out.strip(), client.describe)
    (row,) = table(accel.broker.tool("ss"))
    assert (row["Local-Address"], row["Peer-Address"]) == (own, f"127.0.0.1:{port}")
    (shown,) = json.loads(accel.broker.tool("ss", "--json"))["connections"]
    assert (shown["local"], shown["remote"], shown["cookie"]) == (own, f"127.0.0.1:{port}", 0)
    assert len(table(accel.broker.tool("ss", f"dport = :{port}"))) == 1
    assert f"talks as client from {own} to 127.0.0.1:{port}; it runs on TCP" in accel.broker.tool("explain", str(client.pid))
    assert f"127.0.0.1:{port}" in accel.broker.tool("top", "--once", "--connections")
    os.close(told)
    client.finish()


def test_shut_down_directions_are_shown(world):
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    server = accel.server("server", [sys.executable, "-c", READER, port], stdin=(pipe := os.pipe())[0])
    server.wait_listening(port)
    program = WRITER.replace("connection.sendall(bytes(64 << 20))", "connection.shutdown(socket.SHUT_WR); sys.stdin.readline()")
    client = accel.client("client", [sys.executable, "-c", program, port], stdin=(more := os.pipe())[0])
    shutd = lambda: {row["PID"]: row["Shutd"] for row in table(accel.broker.tool("ss", "-d"))}
    wanted = {str(client.pid): "<-W", str(server.pid): "R->"}
    until(lambda: shutd() == wanted, lambda: f"{wanted}: {shutd()}")
    for end in (*pipe, *more):
        os.close(end)


def test_a_reset_is_the_callers_own(world):
    pair = Pair(world)
    pair.has("SMCD")
    env = lambda who: world.env | {"SHUNPIKE_SOCKET": str(pair.broker.socket), "XDG_STATE_HOME": str(world.directory / who)}

    def stats(who, *arguments):
        result = subprocess.run([world.binary, "stats", *arguments], env=env(who), capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    count = lambda who, *arguments: json.loads(stats(who, "--json", *arguments))["tx"]["calls"]
    before = count("one")
    assert before > 0
    stats("one", "reset")
    assert (count("one"), count("other")) == (0, before), "nobody else's"
    assert count("one", "--absolute") == before
    pair.talk(times=7)
    assert count("one") == 14, "seven dialogues, counted at both ends"
    assert count("other") == before + 14
    assert json.loads(stats("one", "json"))["SMCD"]["SMC_TX_CNT"] == 14
    assert json.loads(stats("one", "json"))["SMCD"]["SMC_USR_TX_BUF_8K"] == 14
    assert os.stat(next((world.directory / "one/shunpike").iterdir())).st_mode & 0o777 == 0o600
    pair.close()


def test_the_reasons_are_told_for_each_side(world):
    accel, port = Accel(world, "client"), free_port()
    server = world.start("server", [sys.executable, "-c", READER, port], stdin=(pipe := os.pipe())[0]).wait_listening(port)
    program = WRITER.replace("connection.sendall(bytes(64 << 20))", "")
    accel.client("client", [sys.executable, "-c", program, port]).finish()
    text = until(lambda: "by reason, client" in (t := accel.broker.tool("stats", "-d")) and t, lambda: accel.broker.tool("stats", "-d"))
    assert "by reason, server" not in text, text
    os.close(pipe[0]), os.close(pipe[1])
    server.finish()


def test_chk_says_whether_there_would_be_a_lane(world):
    pair = Pair(world)
    pair.talk()
    where = f"127.0.0.1:{pair.port}"
    status, said = asked(pair.broker, "chk", where)
    assert status == 0 and "Success, using SMC-D" in said, said
    assert f"PID {pair.server.pid}" in said, said

    def failing(name, *arguments, broker=pair.broker):
        status, said = asked(broker, "chk", "--json", *arguments)
        answer = json.loads(said)
        failed = [finding["name"] for finding in answer["findings"] if finding["is_so"] is False]
        assert (status, answer["lane"], failed) == (1, False, [name]), said

    failing("this host", "192.0.2.1:80")
    failing("listener", f"localhost:{free_port()}")
    pair.broker.tool("device", "set", "active", "off")
    failing("device", where)
    pair.broker.tool("device", "set", "active", "on")
    failing("broker", where, broker=world.broker(name="another"))
    status, said = asked(pair.broker, "chk", "nonsense")
    assert status == 1 and "HOST:PORT" in said
    pair.close()


def test_chk_sees_a_server_that_is_not_ours(world):
    broker, port = world.broker(), free_port()
    server = world.start("server", [sys.executable, "-c", READER, port]).wait_listening(port)
    status, said = asked(broker, "chk", f"127.0.0.1:{port}")
    missing = rf"libshunpike\.so is not loaded in python\S* \(PID {server.pid}\)"
    assert status == 1 and re.search(missing + ": start it with 'shunpike run'", said), said
    assert "Failed (TCP fallback), reasons:" in said
    status, said = asked(broker, "explain", str(server.pid))
    assert status == 1 and re.search(rf"no watched connection \(PID {server.pid}\); {missing}; start it with 'shunpike run'", said), said


def test_chk_of_a_server_that_overwrites_its_environment(world):
    """redis-server has a title where its environment was: whose broker it uses its session tells."""
    accel, port = Accel(world, "both"), free_port()
    accel.server("redis", ["redis-server", "--port", port, "--save", "", "--dir", world.directory]).wait_listening(port)
    accel.client("benchmark", ["redis-benchmark", "-p", port, "-q", "-c", 2, "-n", 2000, "-t", "set"]).finish()
    status, said = asked(accel.broker, "chk", f"127.0.0.1:{port}")
    assert status == 0 and f"both ends use the broker at {accel.broker.socket}" in said, said


DAEMON = """
import os, socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
worker = [sys.executable, "-c", "import sys; print('started', flush=True); sys.stdin.read()"]
subprocess.run(worker, env={"PATH": os.environ["PATH"]}, pass_fds=[listener.fileno()])
"""


def test_chk_sees_a_daemon_that_clears_its_environment(world):
    """Dovecot and Postfix do so: who accepts is not who was started by `run`."""
    accel, port = Accel(world, "server"), free_port()
    daemon = accel.server("daemon", [sys.executable, "-c", DAEMON, port], stdin=subprocess.PIPE)
    until(lambda: daemon.out == "started\n", daemon.describe)
    status, said = asked(accel.broker, "chk", f"127.0.0.1:{port}")
    assert status == 1 and f", though it is in python3 (PID {daemon.pid})" in said, said
    assert "have LD_PRELOAD and SHUNPIKE_SOCKET handed on" in said, said
    daemon.popen.stdin.close()
    daemon.finish()


@needs_root
def test_chk_knows_the_policy(world):
    pair = Pair(world)
    pair.has("SMCD")
    world.directory.chmod(0o755)
    binary = world.directory / "shunpike"
    binary.write_bytes(world.binary.read_bytes())
    binary.chmod(0o755)
    argv = ["setpriv", "--reuid=61000", "--regid=61000", "--clear-groups", binary, "chk", "--json", f"127.0.0.1:{pair.port}"]
    env = world.env | {"SHUNPIKE_SOCKET": str(pair.broker.socket)}
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    findings = {finding["name"]: finding["is_so"] for finding in json.loads(result.stdout)["findings"]}
    assert result.returncode == 1 and findings["policy"] is False, result.stdout
    assert findings["session"] is None, "whether another user's process has a session is not told"
    pair.close()


def test_dbg_has_everything_but_tokens_and_bytes(world):
    pair = Pair(world)
    secret = b"this-is-payload!"
    world.env["SECRET_OF_THE_PROGRAM"] = "hunter2"
    pair.has("SMCD")
    path = world.directory / "report.tar.gz"
    pair.broker.tool("dbg", "-o", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        files = {name.split("/", 1)[1]: archive.extractfile(name).read() for name in archive.getnames()}
    assert {"README", "system", "info.json", "sysctl.json", "ss.json", "linkgroup.json", "stats.json", "errors"} <= set(files)
    assert files["errors"] == b""
    connections = json.loads(files["ss.json"])["connections"]
    assert {c["pid"] for c in connections} == {pair.client.pid, pair.server.pid}
    assert {c["mode"] for c in connections} == {"SMCD"}
    assert b"libshunpike" in files[f"processes/{pair.server.pid}"] and b"Max open files" in files[f"processes/{pair.client.pid}"]
    everything = b"".join(files.values())
    tokens = {c[way]["token"].encode() for c in pair.broker.connections() for way in ("tx", "rx")}
    assert len(tokens) == 2 and not any(token in everything for token in tokens)
    names = [[c[way]["token"] for way in ("tx", "rx")] for c in connections]
    assert sorted(names[0]) == ["token-1", "token-2"] and names[1] == names[0][::-1], "the two ends of two lanes"
    assert b"hunter2" not in everything and b"SECRET" not in everything and secret not in everything
    assert SERVER_SOURCE not in everything, "no command lines"
    status, said = asked(pair.broker, "dbg", "-o", str(path))
    assert status == 1 and "exists" in said, "nothing is written over"
    pair.close()


SERVER_SOURCE = b"selectors.DefaultSelector"


def test_dbg_works_without_a_broker(world):
    path = world.directory / "report.tar.gz"
    env = world.env | {"SHUNPIKE_SOCKET": str(world.directory / "nobody.sock")}
    env[b"SHUNPIKE_X"] = b"\xff"
    result = subprocess.run([world.binary, "dbg", "-o", path], env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1]: name for name in archive.getnames()}
        assert set(names) == {"README", "system", "errors"}
        assert b"no broker answers" in archive.extractfile(names["errors"]).read()


def test_smc_tools_names_are_links_to_the_command(world):
    """`make install` puts them into a directory of their own."""
    place = world.directory / "place"
    made = subprocess.run(["make", "install", f"DESTDIR={place}", "PREFIX=/usr"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"CARGO_TARGET_DIR": str(TARGET.parent)})  # fmt: skip
    assert made.returncode == 0, made.stderr
    names = place / "usr/lib/shunpike/smc-tools"
    pair = Pair(world)
    pair.has("SMCD", connections=2)
    env = world.env | {"SHUNPIKE_SOCKET": str(pair.broker.socket), "PATH": f"{names}:{world.env['PATH']}"}
    env.pop("SHUNPIKE_LIB")

    def run(line):
        result = subprocess.run(line.split(), env=env, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, f"{line}: {result.stderr}"
        return result.stdout

    assert run("smcss") == pair.broker.tool("ss") and run("smcss").count("SMCD") == 4
    assert run("smcss -D") == pair.broker.tool("ss", "-D")
    assert table(run("smcd linkgroup show all"))[0]["#Conns"] == "2"
    assert run("smcd d").splitlines()[1].split() == ["0000", "0", "loopback-ism", "ffff", "Yes", "1"]
    assert "Connections Summary" in run("smcd -d stats")
    assert "Success, using SMC-D" in run(f"smc_chk -C 127.0.0.1 -p {pair.port}")
    library = f"{place}/usr/lib/libshunpike.so"
    assert run("smc_run -d printenv LD_PRELOAD").strip() == library, "the library that lies beside the command"
    pair.close()
