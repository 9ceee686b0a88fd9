"""`shunpike tap`: what tshark makes of it, what is lost and told, and who may."""

import os
import pty
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from harness import Accel
from netns import needs_root
from operators import Pair, asked
from procs import free_port, until
from web import Nginx

pytestmark = pytest.mark.operators


class Tap:
    """A tap that writes a capture into a file of the world's."""

    def __init__(self, world, broker, *options, who=(), env=None):
        self.world, self.file = world, world.directory / f"tap{len(world.procs)}.pcapng"
        argv = [*who, world.binary, "tap", "-w", self.file, *options]
        self.proc = world.start("tap", argv, env={"SHUNPIKE_SOCKET": str(broker.socket)} | (env or {}))
        self.says("waiting for programs")

    def says(self, *words):
        until(lambda: all(str(word) in self.proc.err for word in words), lambda: f"{words}: {self.proc.describe()}")
        return self

    def end(self, status=0):
        """Ends it as Ctrl-C does; what it says of all."""
        os.kill(self.proc.pid, signal.SIGINT)
        self.proc.finish(status=status)
        return self.proc.err

    def fields(self, filter, *names, options=()):
        return fields(self.file, filter, *names, options=options)

    def bodies(self):
        """The bodies of HTTP's answers, as tshark puts them together."""
        to = self.file.with_suffix(".objects")
        tshark("-r", self.file, "-q", "--export-objects", f"http,{to}")
        return {path.name: path.read_bytes() for path in to.iterdir()}


def tshark(*argv):
    result = subprocess.run(["tshark", *map(str, argv)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fields(file, filter, *names, options=()):
    """What tshark finds: for each packet that `filter` admits, the fields' values."""
    wanted = [word for name in names for word in ("-e", name)]
    lines = tshark("-r", file, "-Y", filter, "-T", "fields", *wanted, *options).splitlines()
    return [tuple(line.split("\t")) for line in lines]


def interfaces(file):
    """By the capture's own account: {interface: packets lost}, from the last statistics of each."""
    data, at, names, lost = file.read_bytes(), 0, [], {}
    while at < len(data):
        kind, length = (int.from_bytes(data[at + n : at + n + 4], "little") for n in (0, 4))
        assert int.from_bytes(data[at + length - 4 : at + length], "little") == length, f"block at {at}"
        body = data[at + 8 : at + length - 4]
        if kind == 1:
            names.append(options_of(body[8:])[2].decode())
        elif kind == 5:
            lost[names[int.from_bytes(body[:4], "little")]] = int.from_bytes(options_of(body[12:])[5], "little")
        at += length
    return lost


def options_of(data):
    found = {}
    while len(data) >= 4 and (code := int.from_bytes(data[:2], "little")):
        length = int.from_bytes(data[2:4], "little")
        found[code] = data[4 : 4 + length]
        data = data[4 + (length + 3) // 4 * 4 :]
    return found


FLAWS = "tcp.analysis.lost_segment or tcp.analysis.ack_lost_segment or tcp.analysis.retransmission or tcp.analysis.out_of_order"
CHECKED = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE")


@pytest.fixture
def nginx(world):
    accel = Accel(world, "both", ["--eager"])
    (world.directory / "www").mkdir()
    (world.directory / "www/page").write_bytes(bytes(range(256)) * 400)
    server = Nginx(accel, world)
    server.accel = accel
    yield server
    server.check()


def curl(nginx, *paths):
    urls = [word for path in paths for word in ("-o", "/dev/null", nginx.url(path))]
    return nginx.accel.client("curl", ["curl", "-sS", *urls]).finish()


def test_tshark_reads_http(world, nginx):
    tap = Tap(world, nginx.accel.broker).says("tapping nginx")
    curl(nginx, "hello", "page", "missing")
    said = tap.end()
    assert "lost for want of room: 0 (0 bytes); 0 bytes are missing" in said, said
    port = nginx.port
    requests = tap.fields("http.request", "http.request.method", "http.request.uri", "tcp.dstport")
    assert requests == [("GET", path, str(port)) for path in ("/hello", "/page", "/missing")]
    answers = tap.fields("http.response", "http.response.code", "http.content_length", "tcp.srcport")
    assert [(code, source) for code, _, source in answers] == [("200", str(port)), ("200", str(port)), ("404", str(port))]
    assert answers[1][1] == str(256 * 400)
    bodies = tap.bodies()
    assert bodies["hello"] == b"hello from nginx\n" and bodies["page"] == bytes(range(256)) * 400
    # One connection, from its first byte to its last.
    assert len(set(tap.fields("tcp", "tcp.stream"))) == 1
    assert len(tap.fields("tcp.flags.syn == 1", "frame.number")) == 2 and len(tap.fields("tcp.flags.fin == 1", "frame.number")) == 2
    assert tap.fields(FLAWS, "frame.number") == []
    assert tap.fields("tcp.checksum.status != 1 or ip.checksum.status != 1", "frame.number", options=CHECKED) == []
    # Each packet names its process.
    (client,) = {name for (name,) in tap.fields(f"tcp.dstport == {port} and tcp.len > 0", "frame.interface_name")}
    assert client.endswith("/curl") and set(interfaces(tap.file).values()) == {0}
    assert client in interfaces(tap.file)


def test_tshark_reads_http_that_has_begun_before(world, nginx):
    """Connections that have had their lanes for long are seen from the tap's beginning on."""
    load = nginx.accel.client("wrk", ["wrk", "-t1", "-c4", "-d60s", nginx.url("hello")])
    until(lambda: nginx.accel.broker.stats().lanes >= 4, lambda: f"lanes: {nginx.accel.broker.stats()}")
    tap = Tap(world, nginx.accel.broker, "-c", "20000")
    tap.proc.finish()
    load.stop()
    assert len(tap.fields("http.request.uri == \"/hello\"", "frame.number")) > 100
    assert len(tap.fields("http.response.code == 200", "frame.number")) > 100
    assert tap.fields("tcp.flags.syn == 1 or tcp.analysis.lost_segment", "frame.number") == []
    begins = tap.fields("frame.comment contains \"seen from here on\"", "frame.number")
    assert 1 <= len(begins) <= 8, "each direction at its first segment"


def redis(world, accel):
    port = free_port()
    argv = ["redis-server", "--port", port, "--bind", "127.0.0.1", "::1", "--save", "", "--appendonly", "no"]
    accel.server("redis", argv).wait_listening(port)
    return port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_tshark_reads_redis(world, host):
    accel = Accel(world, "both", ["--eager"])
    port = redis(world, accel)
    tap = Tap(world, accel.broker, f"host {host}", "and", f"port {port}").says("tapping redis-server")
    cli = lambda *words: accel.client("redis-cli", ["redis-cli", "-h", host, "-p", port, *words]).finish()
    assert cli("set", "key", "a value") == "OK\n" and cli("lrange", "none", "0", "1") == "\n" and cli("get", "key") == "a value\n"
    tap.end()
    as_redis = ("-d", f"tcp.port=={port},resp")
    values = tap.fields("resp", "tcp.srcport", "resp.bulk_string.value", "resp.string", options=as_redis)
    texts = [(source == str(port), bytes.fromhex(value.replace(",", "")) if value else b"", text) for source, value, text in values]
    assert (False, b"setkeya value", "") in texts and (True, b"", "OK") in texts and (True, b"a value", "") in texts, texts
    address = "ip.addr" if "." in host else "ipv6.addr"
    assert len(tap.fields(f"{address} == {host}", "frame.number")) == len(tap.fields("tcp", "frame.number")) > 12
    assert tap.fields(FLAWS, "frame.number") == []


def test_a_large_transfer_has_no_gap(world, bed, nginx):
    content = os.urandom(24 << 20)
    (world.directory / "www/large").write_bytes(content)
    tap = Tap(world, nginx.accel.broker, "-B", "32M").says("tapping nginx")
    curl(nginx, "large")
    said = tap.end()
    assert "lost for want of room: 0 " in said and "; 0 bytes are missing" in said, said
    assert tap.fields(FLAWS, "frame.number") == []
    assert max(int(length) for (length,) in tap.fields("tcp.len > 0", "tcp.len")) <= 65535
    assert tap.bodies()["large"] == content


def copy(source, path):
    with open(source, "rb") as pipe, open(path, "wb", buffering=0) as file:
        shutil.copyfileobj(pipe, file)


def test_what_finds_no_room_is_counted_everywhere(world):
    """The one who reads the capture does not: the programs go on, the rings fill, and nothing is lost in silence."""
    pair = Pair(world)
    pair.has("SMCD")
    read, write = os.pipe()
    argv = [world.binary, "tap", "-B", "256K", "-w", "/dev/stdout"]
    capture = world.directory / "slow.pcapng"
    capture.touch()
    env = world.env | {"SHUNPIKE_SOCKET": str(pair.broker.socket)}
    with subprocess.Popen(argv, stdout=write, stderr=subprocess.PIPE, env=env, text=True) as tap:
        try:
            os.close(write)
            while "tapping" not in (line := tap.stderr.readline()):
                assert line
            while "tapping" not in (line := tap.stderr.readline()):
                assert line
            pair.talk(size=1 << 20, times=8)  # it must not wait for the tap
            reader = threading.Thread(target=copy, args=(read, capture), daemon=True)
            reader.start()
            # More than both rings and the pipe hold: a capture that ended at what was lost would have no gap to show.
            until(lambda: pair.talk(size=64 << 10) or capture.stat().st_size > 2 << 20, "frames after those that were lost")
            tap.send_signal(signal.SIGINT)
            reader.join()
            said = tap.stderr.read()
            assert tap.wait(20) == 0
        finally:
            tap.kill()  # or one that goes on would be waited for
    lost = int(said.split("want of room: ")[1].split()[0])
    assert lost > 20, said
    assert sum(interfaces(capture).values()) == lost, "the capture says as much"
    gaps = fields(capture, "tcp.analysis.lost_segment", "frame.comment")
    assert len(gaps) > 0 and all("lost by the tap" in comment for (comment,) in gaps)
    pair.has("SMCD")
    pair.close()


def test_a_tap_that_is_killed_is_gone_from_the_programs(world):
    pair = Pair(world)
    pair.has("SMCD")
    rings = lambda: [Path(f"/proc/{proc.pid}/maps").read_text().count("memfd:shunpike-tap") for proc in (pair.client, pair.server)]
    assert rings() == [0, 0]
    for _ in range(3):
        tap = Tap(world, pair.broker).says(pair.client.pid, pair.server.pid)
        pair.talk()
        assert rings() == [1, 1]
        tap.proc.kill()
        held = lambda: Path(f"/proc/{pair.broker.proc.pid}/fd").iterdir()
        until(lambda: not any("shunpike-tap" in pair.broker.link(path) for path in held()), "the broker lets its rings go")
    # Untapped at the next call, and unmapped when lanes are next opened or closed.
    pair.broker.tool("revoke", str(pair.client.pid))
    pair.talk()
    pair.has("SMCD", connections=2)
    until(lambda: pair.talk() or rings() == [0, 0], lambda: f"rings that are mapped still: {rings()}")
    pair.close()


def test_a_tap_outlives_programs_and_sees_those_that_come(world):
    accel = Accel(world, "both", ["--eager"])
    tap = Tap(world, accel.broker, "dst", "port", "1", "or", "not", "port", "1")
    port = redis(world, accel)
    tap.says("tapping redis-server")
    benchmark = ["redis-benchmark", "-p", port, "-c", 4, "-n", 2000, "-t", "set", "-q"]
    accel.client("benchmark", benchmark).finish()
    killed = accel.client("killed", [*benchmark[:-5], "-c", 4, "-n", 100_000_000, "-q"])
    until(lambda: str(killed.pid) in tap.proc.err, tap.proc.describe)
    killed.kill()
    accel.client("after", ["redis-cli", "-p", port, "set", "last", "word"]).finish()
    said = tap.end()
    assert "ended within a record" not in said, said
    as_redis = ("-d", f"tcp.port=={port},resp")
    assert len(tap.fields("resp.bulk_string.value contains \"last\"", "frame.number", options=as_redis)) == 1


def test_a_filter_for_a_process_shows_both_directions(world):
    accel = Accel(world, "both", ["--eager"])
    ports = [redis(world, accel) for _ in range(2)]
    server = next(proc for proc in world.procs if proc.name == "redis.1")
    tap = Tap(world, accel.broker, f"pid {server.pid}").says("tapping redis-server", server.pid)
    for port in ports:
        accel.client("redis-cli", ["redis-cli", "-p", port, "ping"]).finish()
    tap.end()
    seen = set(tap.fields("tcp.len > 0", "tcp.srcport", "tcp.dstport"))
    assert len(seen) == 2 and all(str(ports[1]) in ends and str(ports[0]) not in ends for ends in seen), seen


def test_text_shows_what_is_said(world):
    accel = Accel(world, "both", ["--eager"])
    port = redis(world, accel)
    env = {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    tap = world.start("tap", [world.binary, "tap", "-c", "2"], env=env)
    until(lambda: "tapping redis-server" in tap.err, tap.describe)
    # It speaks when the tap is there: what a program says before is not seen.
    words, speak = os.pipe()
    client = accel.client("redis-cli", ["redis-cli", "-p", port, "-x", "echo"], stdin=words)
    until(lambda: "tapping redis-cli" in tap.err, tap.describe)
    os.write(speak, b"ping")
    os.close(speak)
    client.finish()
    os.close(words)
    lines = tap.finish().splitlines()
    assert [line.split("[")[1].split("]")[0] for line in lines[:3]] == ["S", "S.", "."]
    assert f"127.0.0.1:{port}: [P.] seq 1 ack 1 len 24 redis-cli/" in lines[3] and lines[3].endswith(r'"*2\r\n$4\r\necho\r\n$4\r\nping\r\n"')
    assert "[P.] seq 1 ack 25 len 10 redis-server/" in lines[4] and lines[4].endswith(r'"$4\r\nping\r\n"')
    assert "2 segments of 1 connections" in tap.err


@needs_root
def test_another_user_sees_nothing(world):
    """At a broker that serves all users: one's own processes, and for root all."""
    world.directory.chmod(0o755)
    policy = world.directory / "broker.toml"
    policy.write_text('[peers]\nallow = "any"\n')
    world.env["XDG_RUNTIME_DIR"] = str(world.directory)
    binary, library = (world.directory / name for name in ("shunpike", "libshunpike.so"))
    binary.write_bytes(world.binary.read_bytes()), library.write_bytes(Path(world.env["SHUNPIKE_LIB"]).read_bytes())
    binary.chmod(0o755), library.chmod(0o755)
    world.binary, world.env["SHUNPIKE_LIB"] = binary, str(library)
    accel = Accel(world, "both", ["--eager"], ("--config", str(policy)))
    as_user = lambda uid: ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    shared = world.directory / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)

    port = free_port()
    argv = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", "/"]
    env = {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    start = lambda name, uid, argv: world.start(name, [*as_user(uid), binary, "run", "--eager", "--", *argv], env=env)
    start("redis", 61001, argv).wait_listening(port)
    taps = {uid: world.start(f"tap-{uid}", [*as_user(uid), binary, "tap"], env=env) for uid in (0, 61001, 61002)}
    until(lambda: all("waiting" in tap.err for tap in taps.values()), "all taps to wait")
    until(lambda: all("redis-server" in taps[uid].err for uid in (0, 61001)), "root and the user to tap")
    client = start("client", 61002, ["redis-cli", "-p", port, "set", "secret", "hunter2"])
    client.finish()
    accel.verify(lanes=1)
    for uid, tap in taps.items():
        os.kill(tap.pid, signal.SIGINT)
        tap.finish()
    assert "secret" in taps[0].out and "+OK" in taps[0].out
    assert "secret" not in taps[61001].out and "+OK" in taps[61001].out, "what the user's own server sent"
    assert "secret" in taps[61002].out and "+OK" not in taps[61002].out and "redis-server" not in taps[61002].err


@needs_root
def test_a_process_that_is_not_to_be_looked_into_is_not(world, bed):
    """One whose memory no process of its user may read, here as its program may not be read either; root may."""
    world.become("www-data")
    accel, port = Accel(world, "both", ["--eager"]), free_port()
    guarded = world.directory / "guarded"
    guarded.write_bytes((bed / "pingpong").read_bytes())
    guarded.chmod(0o711)
    server = accel.server("server", [guarded, "server", port, 1, 100_000_000]).wait_listening(port)
    client = accel.client("client", [bed / "pingpong", "client", port, 1, 100_000_000])
    until(lambda: accel.broker.stats().lanes, "a lane")
    tap = Tap(world, accel.broker).says(f"(PID {client.pid}", f"(PID {server.pid}) does not let its own user look into it")
    tap.end()
    world.user = None
    root = Tap(world, accel.broker, "-c", "1000")
    root.proc.finish()
    client.stop()
    server.stop()
    sources = lambda tap: {source == str(port) for (source,) in tap.fields("tcp.len > 0", "tcp.srcport")}
    assert sources(tap) == {False}, "the other end only"
    assert sources(root) == {False, True}


def test_mistakes_are_told_with_what_to_do(world):
    broker = world.broker()
    for filter, wanted in [("prot 80", "at 'prot': write port N"), ("port 80 and", "at its end"), ("(port 80", "closing parenthesis"),
                           ("host localhost", "names are not looked up"), ("port 70000", "0 to 65535")]:  # fmt: skip
        status, said = asked(broker, "tap", *filter.split())
        assert status == 2 and wanted in said, said
    status, said = asked(broker, "tap", "-B", "1G")
    assert status == 2 and "256K to 32M" in said
    status, said = asked(broker, "tap", "-w", str(world.directory / "none/x"))
    assert status == 1 and "cannot write" in said
    # A terminal would be spoilt.
    controller, terminal = pty.openpty()
    result = subprocess.run([world.binary, "tap", "-w", "-"], stdout=terminal, stderr=subprocess.PIPE, text=True, timeout=20,
                            env=world.env | {"SHUNPIKE_SOCKET": str(broker.socket)})  # fmt: skip
    os.close(controller), os.close(terminal)
    assert result.returncode == 1 and "nothing for a terminal" in result.stderr
    taps = [Tap(world, broker) for _ in range(4)]
    status, said = asked(broker, "tap")
    assert status == 1 and "too many taps" in said and "end one first" in said
    taps.pop().end()
    Tap(world, broker).end()
    for tap in taps:
        tap.end()
    assert oct(tap.file.stat().st_mode & 0o777) == "0o600"


def test_a_tap_ends_with_its_broker_and_with_its_reader(world):
    pair = Pair(world)
    pair.has("SMCD")
    env = world.env | {"SHUNPIKE_SOCKET": str(pair.broker.socket)}
    with subprocess.Popen([world.binary, "tap", "-w", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as tap:
        assert tap.stdout.read(4) == bytes.fromhex("0a0d0d0a")
        tap.stdout.close()
        assert tap.wait(10) == 0, tap.stderr.read()
    tap = Tap(world, pair.broker).says(pair.client.pid, pair.server.pid)
    pair.talk()
    pair.broker.kill()
    tap.proc.finish(status=1)
    assert "no broker answers" in tap.proc.err
    assert len(tap.fields("tcp.len > 0", "frame.number")) >= 20, "what was seen is there"
    pair.talk()
    pair.close()


def test_a_tap_ends_while_its_reader_stalls(world, nginx):
    """Each segment had its own second of patience."""
    (world.directory / "www/large").write_bytes(bytes(32 << 20))
    env = world.env | {"SHUNPIKE_SOCKET": str(nginx.accel.broker.socket)}
    with subprocess.Popen([world.binary, "tap", "-w", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as tap:
        try:
            assert tap.stdout.read(4) == bytes.fromhex("0a0d0d0a")
            curl(nginx, "large")
            tap.send_signal(signal.SIGINT)
            assert tap.wait(10) == 0
            assert b"whoever reads took no more" in tap.stderr.read()
        finally:
            tap.kill()  # or one that goes on would be waited for


def test_extcap_says_what_wireshark_wants_to_hear(world):
    broker = world.broker()
    link = world.directory / "shunpike-extcap"
    link.symlink_to(world.binary)

    def call(*words, status=0):
        env = world.env | {"SHUNPIKE_SOCKET": str(broker.socket)}
        result = subprocess.run([link, *words], capture_output=True, text=True, env=env, timeout=20)
        assert result.returncode == status, result.stderr
        return result.stdout + result.stderr

    assert "interface {value=shunpike}{display=Shunpike lanes}" in call("--extcap-interfaces", "--extcap-version=4.0")
    assert call("--extcap-dlts", "--extcap-interface", "shunpike") == "dlt {number=101}{name=RAW}{display=Raw IP}\n"
    assert call("--extcap-config", "--extcap-interface", "shunpike").count("arg {number=") == 2
    assert call("--extcap-interface", "shunpike", "--extcap-capture-filter", "port 80") == ""
    assert "at 'prot'" in call("--extcap-interface", "shunpike", "--extcap-capture-filter", "prot 80", status=2)
    assert "no interface 'lo'" in call("--extcap-dlts", "--extcap-interface", "lo", status=1)
    assert "needs --fifo" in call("--capture", "--extcap-interface", "shunpike", status=1)


@needs_root
def test_tshark_captures_by_extcap(world):
    """As Wireshark's own list of interfaces does it, live. By root, Wireshark looks into the system's directory only."""
    world.become("www-data")
    accel = Accel(world, "both", ["--eager"])
    port = redis(world, accel)
    place = world.directory / "extcap"
    place.mkdir()
    (place / "shunpike-extcap").symlink_to(world.binary)
    env = {"WIRESHARK_EXTCAP_DIR": str(place), "SHUNPIKE_SOCKET": str(accel.broker.socket)}
    live = world.start("tshark", ["tshark", "-l", "-i", "shunpike", "-f", f"port {port}", "-d", f"tcp.port=={port},resp",
                                  "-T", "fields", "-e", "tcp.srcport", "-e", "resp.string"], env=env)  # fmt: skip
    ping = lambda: accel.client("redis-cli", ["redis-cli", "-p", port, "ping"]).finish()
    until(lambda: ping() and f"{port}\tPONG" in live.out, live.describe, seconds=30, pause=0.2)
    os.kill(live.pid, signal.SIGINT)
    live.popen.wait(20)
