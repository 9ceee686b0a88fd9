"""Metrics: what a scrape gets, what it can cost, and that the dashboard asks for what there is."""

import json
import re
import socket
import struct
import time
import urllib.request
from pathlib import Path

import pytest

from harness import ROOT
from operators import Pair, asked
from procs import free_port, until

pytestmark = pytest.mark.operators

SAMPLE = re.compile(r'^(shunpike_[a-z_]+)(?:\{((?:[a-z]+="[^"\\]*",?)*)\})? (\S+)$')


def get(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return parsed(answer.read().decode())


def parsed(text):
    """{(name, labels): value} of OpenMetrics text, checked: each sample of a family that was announced, names in one
    piece, buckets that add up, an end."""
    lines = text.splitlines()
    assert lines.pop() == "# EOF" and text.endswith("\n")
    kinds, samples, order = {}, {}, []
    for line in lines:
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            if what == "TYPE":
                assert name not in kinds, f"announced twice: {name}"
                kinds[name] = rest
            continue
        name, labels, value = SAMPLE.match(line).groups()
        family = name if name in kinds else re.sub(r"_(total|bucket|sum|count)$", "", name)
        suffix = name[len(family):]
        allowed = {"counter": {"_total"}, "gauge": {""}, "histogram": {"_bucket", "_sum", "_count"}}[kinds[family]]
        assert suffix in allowed, line
        order.append(family)
        key = (name, tuple(sorted(re.findall(r'([a-z]+)="([^"]*)"', labels or ""))))
        assert key not in samples, f"twice: {line}"
        samples[key] = float(value)
    assert len([f for i, f in enumerate(order) if i == 0 or order[i - 1] != f]) == len(set(order)), "families in one piece"
    for (name, labels), count in samples.items():
        if name == "shunpike_lane_call_bytes_count":
            buckets = [v for (n, l), v in samples.items() if n == "shunpike_lane_call_bytes_bucket" and set(labels) <= set(l)]
            assert buckets == sorted(buckets) and len(buckets) == 8 and buckets[-1] == count
    return samples


def value(samples, name, /, **labels):
    return samples[name, tuple(sorted(labels.items()))]


def test_a_scrape_says_what_the_tools_say(world):
    port = free_port()
    pair = Pair(world, "--metrics", f"127.0.0.1:{port}", "--set", "spin_us=7")
    pair.has("SMCD", connections=3)
    stats, device = pair.broker.stats(), json.loads(pair.broker.tool("device", "show", "--json"))
    samples = get(port)
    assert value(samples, "shunpike_connections", path="lane") == 6 and value(samples, "shunpike_connections", path="tcp") == 0
    assert value(samples, "shunpike_lane_call_bytes_sum", direction="tx") == stats.tx_bytes == device["xfer_bytes"]
    assert value(samples, "shunpike_lane_call_bytes_count", direction="rx") > 0
    assert value(samples, "shunpike_connections_upgraded_total", role="client") == 3
    wakeups = [value(samples, f"shunpike_wakeup_seconds_{part}") for part in ("count", "sum")]
    assert wakeups[0] > 0 and 0 < wakeups[1] < wakeups[0], "seconds"
    assert value(samples, "shunpike_dmbs") == device["dmbs_cnt"] == 6
    assert value(samples, "shunpike_setting", name="spin_us") == 7
    assert value(samples, "shunpike_programs") == 2 and value(samples, "shunpike_link_groups") == 1
    pair.broker.tool("stats", "reset", "--all")
    pair.broker.tool("device", "set", "active", "off")
    pair.has("TCP 0x0a010002", connections=3)
    later = until(lambda: (s := get(port))["shunpike_device_active", ()] == 0 and s, "the switch is seen")
    assert value(later, "shunpike_fallback_connections", role="server", reason="inactive") == 3
    assert value(later, "shunpike_connections", path="tcp") == 6
    counters = [key for key in samples if key[0].endswith("_total")]
    assert counters and all(later[key] >= samples[key] for key in counters), "counters never go back, not even by a reset"
    pair.close()


def test_a_unix_socket_serves_too(world):
    path = world.directory / "metrics.sock"
    broker = world.broker("--metrics", f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as scraper:
        scraper.connect(str(path))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: scraper.recv(65536), b""))
    head, body = answer.decode().split("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK") and value(parsed(body), "shunpike_device_active") == 1
    broker.proc.stop()
    assert not path.exists()


def test_a_directory_that_others_may_write_is_no_place(world):
    """A link in the socket's place would choose the file whose mode becomes 0666."""
    place = world.directory / "open"
    place.mkdir()
    place.chmod(0o1777)
    proc = world.start("broker", [world.binary, "broker", "--socket", world.directory / "b.sock", "--metrics", f"unix:{place}/m.sock"])
    proc.finish(status=1)
    assert "only its owner can write to" in proc.err and not list(place.iterdir()), proc.err


def test_there_are_none_without_being_asked_for(world):
    """And a place that cannot be had keeps the broker from starting."""
    broker = world.broker()
    links = {broker.link(path) for path in Path(f"/proc/{broker.proc.pid}/fd").iterdir()}
    tables = [Path(f"/proc/{broker.proc.pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    tcp = {f"socket:[{line.split()[9]}]" for table in tables for line in table}
    assert broker.unix_sockets() <= 2 and not links & tcp, "its own sockets only"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        other = world.directory / "other.sock"
        proc = world.start("other", [world.binary, "broker", "--socket", other, "--metrics", address])
        proc.finish(status=1)
        assert f"cannot serve metrics at {address}" in proc.err and "--metrics" in proc.err
    status, said = asked(broker, "broker", "--metrics", "9477")
    assert status == 2 and "127.0.0.1:9477" in said


def asked_by_hand(broker):
    """`info`, without the time that a process takes to start: a query is a datagram (wire/src/session.rs), the answer
    several and an empty one."""
    query, info = 9, 6
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(30)
        try:
            client.connect(f"{broker.socket}.operator")
        except OSError:
            client.connect(str(broker.socket))
        client.send(struct.pack("<HHH", query, info, 0))
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_slow_scrapers_keep_only_themselves_waiting(world):
    port = free_port()
    pair = Pair(world, "--metrics", f"127.0.0.1:{port}")
    pair.has("SMCD")
    connect = lambda: socket.create_connection(("127.0.0.1", port), timeout=30)
    slow = [connect() for _ in range(16)]
    for number, scraper in enumerate(slow):
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nX: "[:number])
    # They are sixteen: the one that came first makes room for another.
    get(port)
    assert slow.pop(0).recv(1) == b""
    assert json.loads(asked_by_hand(pair.broker))["sessions"] == 2
    # The broker answered while the scrapers sat there: they are sent away after five seconds, not before.
    for scraper in slow:
        scraper.setblocking(False)
        with pytest.raises(BlockingIOError):
            scraper.recv(1)
        scraper.settimeout(30)
    for scraper in slow:
        assert scraper.recv(1) == b""
        scraper.close()
    samples = get(port)
    assert value(samples, "shunpike_scrapes_late_total") == 15 and value(samples, "shunpike_scrapes_turned_away_total") == 1
    pair.close()


def test_many_scrapes_are_one_look(world):
    """However many ask: the text is made a few times a second."""
    port = free_port()
    world.broker("--metrics", f"127.0.0.1:{port}")
    began = time.monotonic()
    counts = [value(get(port), "shunpike_scrapes_total") for _ in range(40)]
    seconds = time.monotonic() - began
    assert counts == sorted(counts)
    assert len(set(counts)) <= seconds / 0.25 + 1, f"{len(set(counts))} texts in {seconds:.2f} s"


def exposed(world):
    """The names of all samples that a broker with traffic and a fallback has."""
    port = free_port()
    pair = Pair(world, "--metrics", f"127.0.0.1:{port}")
    pair.has("SMCD")
    pair.broker.tool("device", "set", "active", "off")
    pair.has("TCP 0x0a010002")
    names = until(lambda: (n := {name for name, _ in get(port)}) and "shunpike_fallback_connections" in n and n, "a fallback")
    pair.close()
    return names


def test_the_dashboard_and_the_page_know_the_metrics_that_there_are(world):
    names = exposed(world)
    dashboard = json.loads((ROOT / "dist/grafana/shunpike.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    wanted = set(re.findall(r"shunpike_[a-z_]+", " ".join(queries)))
    assert len(queries) > 15 and wanted <= names, f"nobody exposes {wanted - names}"
    for query in queries:
        assert all(query.count(a) == query.count(b) for a, b in ("()", "{}", "[]")), query
        # What only grows is asked for its rate, and nothing else is.
        for name in re.findall(r"(shunpike_[a-z_]+)", query):
            is_counter = name.endswith(("_total", "_sum", "_count", "_bucket"))
            assert (f"rate({name}" in query) == is_counter, f"{name} in {query}"
    page = set(re.findall(r"`(shunpike_[a-z_]+)", (ROOT / "docs/metrics.md").read_text()))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert page == families, f"in one only: {page ^ families}"
