"""Programs of other projects that no library is loaded into, under `shunpike run --entry=syscall`: hyper's and tokio's in Rust, BusyBox's HTTP, servers
in C that are built with musl. Their results are the same as on TCP."""

import hashlib
import os
import re
import subprocess
import sys

import pytest

from harness import ROOT, TARGET, programs
from packages import MUSL, by_cargo, debian
from procs import free_port
from test_go import line, needs_time, under
from test_programs_hard import content, curl, hard, hash_of  # noqa: F401 (fixtures)
from web import requests_of

pytestmark = pytest.mark.programs


@pytest.fixture(autouse=True)
def by_number(world):
    under(world)


@pytest.fixture(scope="session")
def hyper():
    return by_cargo("static_hyper", "static-hyper", target=MUSL)


def test_hyper(hard, hyper):  # noqa: F811
    """Server and client; and a server whose client is C with a libc."""
    port = line(hard.server("serve", [hyper, "serve"]))
    assert hard.client("ask", [hyper, "ask", port, 10, 200]).finish(60) == "done\n"
    sent = os.urandom(100_000)
    (hard.world.directory / "sent").write_bytes(sent)
    got = hard.world.directory / "got"
    url = f"http://127.0.0.1:{port}/"
    hard.client("curl", ["curl", "-sS", "-o", got, "--data-binary", f"@{hard.world.directory}/sent", *[url] * 5]).finish()
    assert hash_of(got) == hashlib.sha256(sent).hexdigest()
    hard.verify(lanes=5, lane_bytes=1 << 20)


@pytest.fixture(scope="session")
def busybox():
    return debian("bin/busybox", "busybox-static")


def test_busybox(hard, world, content, busybox):  # noqa: F811
    """httpd forks for each connection, whose standard input and output that is; wget and curl fetch."""
    port, root = free_port(), content[0]
    (root / "index.html").write_text("hello\n")
    hard.server("httpd", [busybox, "httpd", "-f", "-p", f"127.0.0.1:{port}", "-h", root]).wait_listening(port)
    for number in range(3):
        got = world.directory / f"got-{number}"
        hard.client("wget", [busybox, "wget", "-q", "-O", got, f"http://127.0.0.1:{port}/random"]).finish()
        assert hash_of(got) == content[1]
    assert curl(hard, world, f"http://127.0.0.1:{port}/") == hashlib.sha256(b"hello\n").hexdigest()
    missing = hard.client("missing", [busybox, "wget", "-q", "-O", "-", f"http://127.0.0.1:{port}/missing"])
    missing.finish(status=1)
    assert "404" in missing.err
    if hard.mode in ("client", "server"):
        assert hard.broker.stats().smc == 0


# Built with musl-gcc from Debian's sources: static ones by system calls, dynamic ones by the library.


@pytest.fixture(scope="session")
def with_musl():
    needs_time(True)
    directory = TARGET.parent / "musl"
    subprocess.run([ROOT / "ci" / "musl", directory], check=True, stdout=subprocess.DEVNULL)
    return directory


LINKS = pytest.mark.parametrize("link", ["static", "dynamic"])


def payloads(hard, kind, port):  # noqa: F811
    """Random ones come back, to a client that has glibc."""
    out = hard.client("payloads", [sys.executable, programs() / "cache_client.py", kind, port, 8, 150]).finish(60)
    assert len(set(out.split())) == 8, out
    hard.verify(lanes=4, lane_bytes=8 * 150 * 1000)


@pytest.mark.suites
@LINKS
def test_redis(hard, world, with_musl, link):  # noqa: F811
    """Its benchmark, and a client that checks what it gets."""
    port = free_port()
    argv = [with_musl / link / "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    hard.server("redis-server", argv).wait_listening(port)
    argv = [with_musl / link / "redis-benchmark", "-p", port, "-c", 20, "-n", 20000, "-d", 300, "-t", "set,get,lpush,lrange_100", "-q"]
    out = hard.client("benchmark", argv).finish(60)
    assert len(re.findall(r"requests per second", out)) >= 4, out
    # The client has glibc.
    payloads(hard, "redis", port)


@pytest.mark.suites
@LINKS
def test_memcached(hard, world, with_musl, link):  # noqa: F811
    port = free_port()
    user = ["-u", "root"] if os.getuid() == 0 else []
    hard.server("memcached", [with_musl / link / "memcached", "-p", port, "-l", "127.0.0.1", *user]).wait_listening(port)
    payloads(hard, "memcached", port)


NGINX = """
daemon off; worker_processes 2; pid {dir}/nginx.pid; error_log {dir}/error.log notice; {user}
events {{ worker_connections 512; }}
http {{
    access_log off; sendfile on; keepalive_requests 1000000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    server {{ listen 127.0.0.1:{port}; root {dir}/www; }}
}}
"""


@pytest.mark.suites
@LINKS
def test_nginx(hard, world, content, with_musl, link):  # noqa: F811
    port, conf = free_port(), world.directory / "nginx.conf"
    (content[0] / "hello").write_text("hello\n")
    conf.write_text(NGINX.format(dir=world.directory, port=port, user="user root;" if os.getuid() == 0 else ""))
    hard.server("nginx", [with_musl / link / "nginx", "-c", conf, "-p", world.directory]).wait_listening(port)
    for _ in range(3):
        assert curl(hard, world, f"http://127.0.0.1:{port}/random") == content[1]
    load = hard.client("wrk", ["wrk", "-t2", "-c16", "-d2s", "--timeout", "30s", f"http://127.0.0.1:{port}/hello"]).finish(60)
    requests, errors, bad = requests_of(load)
    assert requests > 100 and errors == 0 and bad == 0, load
    assert "exited on signal" not in (world.directory / "error.log").read_text()
    hard.verify(lanes=4, lane_bytes=10_000)
