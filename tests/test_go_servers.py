"""Servers in Go, of other projects, under `shunpike run --entry=syscall`, each with its own client: what the client gets is the same as on TCP.

NATS, etcd and gRPC have run so; Caddy, CoreDNS and Prometheus not yet."""

import functools
import hashlib
import json
import urllib.parse

import pytest

from harness import Accel, World
from packages import by_go
from procs import free_port, until
from test_go import line, needs_time, under
from test_programs_hard import HARD_MODES, start
from web import requests_of

pytestmark = [pytest.mark.programs, pytest.mark.suites]


@functools.cache
def built(name):
    """The directory of a server's and its client's programs."""
    return by_go(name, *{
        "nats": (["github.com/nats-io/nats-server/v2@v2.15.2", "github.com/nats-io/nats.go@v1.55.0"], "github.com/nats-io/nats-server/v2"),
        "etcd": (["go.etcd.io/etcd/server/v3@v3.7.3", "go.etcd.io/etcd/client/v3@v3.7.3"], "go.etcd.io/etcd/server/v3"),
        "caddy": (["github.com/caddyserver/caddy/v2@v2.11.9"], "github.com/caddyserver/caddy/v2/cmd/caddy"),
        "coredns": (["github.com/coredns/coredns@v1.14.1", "github.com/miekg/dns@v1.1.73"],),
        "grpc": (["google.golang.org/grpc@v1.85.0"],),
        "prometheus": (["github.com/prometheus/prometheus@v0.316.0"], "github.com/prometheus/prometheus/cmd/prometheus",
                       "github.com/prometheus/prometheus/cmd/promtool"),
    }[name], tags="remove_all_sd")  # fmt: skip


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


CADDY = """
{
    admin off
    auto_https off
    persist_config off
}
http://127.0.0.1:%(front)d {
    reverse_proxy 127.0.0.1:%(behind)d
}
http://127.0.0.1:%(behind)d {
    encode gzip
    root * %(root)s
    file_server
    respond /hello "hello from Caddy"
}
"""


def caddy(accel):
    """A proxy before a server of files: by curl, and by wrk's connections, which are kept."""
    program, front, behind = built("caddy") / "caddy", free_port(), free_port()
    root = accel.world.directory / "www"
    root.mkdir()
    for number in range(20):
        (root / f"{number}").write_bytes(hashlib.sha512(b"%d" % number).digest() * number**3)
    conf = accel.world.directory / "Caddyfile"
    conf.write_text(CADDY % {"front": front, "behind": behind, "root": root})
    server = accel.server("caddy", [program, "run", "--config", conf, "--adapter", "caddyfile"])
    for port in (front, behind):
        server.wait_listening(port)
    got = accel.world.directory / "got"
    urls = [part for number in range(20) for part in ("-o", f"{got}/{number}", f"http://127.0.0.1:{(front, behind)[number % 2]}/{number}")]
    accel.client("curl", ["curl", "-sS", "--fail", "--create-dirs", *urls]).finish(60)
    load = accel.client("wrk", ["wrk", "-t1", "-c8", "-d2s", "--timeout", "30s", f"http://127.0.0.1:{front}/hello"]).finish(60)
    requests, errors, bad = requests_of(load)
    hashes = [hashlib.sha256((got / f"{number}").read_bytes()).hexdigest() for number in range(20)]
    return f"{hashes} {requests > 100} {errors} {bad}"


ZONE = """
$ORIGIN example.org.
@ 3600 IN SOA ns.example.org. admin.example.org. 1 7200 3600 1209600 3600
@ 3600 IN NS ns.example.org.
ns 3600 IN A 127.0.0.1
"""


def coredns(accel):
    """One that asks another by TCP, which has the zone."""
    programs, front, behind = built("coredns"), free_port(), free_port()
    place = accel.world.directory
    hosts = "".join(f"host-{n} IN A 10.0.{n // 250}.{n % 250}\nhost-{n} IN TXT \"{'text ' * (n % 40)}\"\n" for n in range(500))
    (place / "zone").write_text(ZONE + hosts)
    conf = {front: f".:{front} {{\n bind 127.0.0.1\n errors\n forward . 127.0.0.1:{behind} {{\n  force_tcp\n }}\n}}\n",
            behind: f"example.org:{behind} {{\n bind 127.0.0.1\n errors\n file {place}/zone\n transfer {{\n  to *\n }}\n}}\n"}  # fmt: skip
    for port in (behind, front):
        (place / f"Corefile-{port}").write_text(conf[port])
        accel.server("coredns", [programs / "serve", "-quiet", "-conf", place / f"Corefile-{port}"]).wait_listening(port)
    return accel.client("ask", [programs / "ask", f"127.0.0.1:{front}", f"127.0.0.1:{behind}"]).finish(60)


def grpc(accel):
    programs = built("grpc")
    port = line(accel.server("serve", [programs / "serve"]))
    return accel.client("ask", [programs / "ask", port]).finish(60)


PROMETHEUS = """
global: {{ scrape_interval: 200ms }}
scrape_configs:
  - job_name: itself
    static_configs: [{{ targets: ["127.0.0.1:{port}"] }}]
"""


def prometheus(accel):
    """It looks at itself; its own tool asks what it has seen."""
    programs, port = built("prometheus"), free_port()
    conf = accel.world.directory / "prometheus.yml"
    conf.write_text(PROMETHEUS.format(port=port))
    argv = [programs / "prometheus", f"--config.file={conf}", f"--storage.tsdb.path={accel.world.directory}/data", "--log.level=error",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    accel.server("prometheus", argv).wait_listening(port)

    def ask(query):
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        return json.loads(accel.world.start("curl", ["curl", "-sS", url]).finish())["data"]["result"]

    until(lambda: any(int(one["value"][1]) >= 15 for one in ask("count_over_time(up[1h])")), lambda: f"15 looks; has {ask('up')}", 60)
    tool = lambda *args: accel.client("promtool", [programs / "promtool", *args[:2], f"http://127.0.0.1:{port}", *args[2:]]).finish()
    # What differs from run to run is the port and the time.
    up = tool("query", "instant", "min_over_time(up[1h])").replace(str(port), "PORT").split("@")[0]
    series = tool("query", "series", "--match=up").replace(str(port), "PORT")
    names = len(ask('count by (__name__) ({__name__=~"go_.*"})'))
    return f"{up}{series}{names > 20}"


# Each, and the least bytes on lanes where both ends are under Shunpike.
SERVERS = {"nats": (nats, 1 << 20), "etcd": (etcd, 100_000), "caddy": (caddy, 100_000), "coredns": (coredns, 10_000), "grpc": (grpc, 1 << 20),
           "prometheus": (prometheus, 100_000)}  # fmt: skip


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
