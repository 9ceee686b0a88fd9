"""nginx, Python's http.server, urllib and curl."""

import hashlib
import os
import sys
import time

import pytest

from harness import programs
from procs import free_port
from web import Nginx, requests_of

pytestmark = pytest.mark.programs

@pytest.fixture
def site(world):
    """A directory with a random file of 50 MB; its hash."""
    root = world.directory / "www"
    root.mkdir()
    content = os.urandom(50_000_000)
    (root / "random").write_bytes(content)
    return root, hashlib.sha256(content).hexdigest()


@pytest.fixture
def nginx(accel, world):
    server = Nginx(accel, world)
    yield server
    server.check()


def test_wrk_on_nginx(accel, nginx):
    report = accel.client("wrk", ["wrk", "-t2", "-c20", "-d2s", nginx.url("hello")]).finish()
    requests, errors, bad = requests_of(report)
    assert requests > 1000 and errors == 0 and bad == 0, report
    accel.verify(lanes=20, lane_bytes=100_000)


def test_nginx_reloads_under_load(accel, world, nginx):
    """The old workers finish what they have; the new ones serve: no request fails."""
    load = accel.client("wrk", ["wrk", "-t2", "-c20", "-d4s", nginx.url("hello")])
    reloads = 0
    while load.popen.poll() is None:
        time.sleep(0.5)  # the reload's rate, not a wait for anything
        world.start("reload", [*nginx.argv, "-s", "reload"]).finish()
        reloads += 1
    requests, errors, bad = requests_of(load.finish())
    assert requests > 1000 and bad == 0 and reloads >= 4, load.out
    # An idle keep-alive connection closed by the old worker as a request is on its way is HTTP's own race, on TCP too;
    # wrk counts such a close as a read error and connects anew. More than one for each connection and reload is ours.
    assert errors <= 20 * reloads, load.out
    accel.verify(lanes=20, lane_bytes=100_000)


def test_curl_gets_a_file_by_sendfile_from_nginx(accel, world, site, nginx):
    get_by_curl(accel, world, nginx.port, site)


def get_by_curl(accel, world, port, site):
    def get():
        got = world.directory / "got"
        accel.client("curl", ["curl", "-sS", "--fail", "-o", got, f"http://127.0.0.1:{port}/random"]).finish()
        assert hashlib.sha256(got.read_bytes()).hexdigest() == site[1]

    get()
    accel.verify(lane_bytes=1 << 20, more=get)


@pytest.fixture
def python_server(accel, site):
    port = free_port()
    argv = [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", site[0]]
    accel.server("http.server", argv).wait_listening(port)
    return port


def test_curl_gets_a_file_from_python(accel, world, site, python_server):
    get_by_curl(accel, world, python_server, site)


def test_urllib_gets_a_file_from_python(accel, site, python_server):
    url = f"http://127.0.0.1:{python_server}/random"

    def fetch():
        out = accel.client("urllib", [sys.executable, programs() / "fetch.py", url, 3]).finish()
        assert out.splitlines() == [f"200 50000000 {site[1]}"] * 3

    fetch()
    accel.verify(lanes=3, lane_bytes=3 << 20, more=fetch)


def test_curl_uploads_to_nginx_are_refused_alike(accel, world, nginx):
    """An answer while the request is still being sent: nginx says 405 or 413 and closes early."""
    body = world.directory / "upload"
    body.write_bytes(os.urandom(3_000_000))
    argv = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect:", "--data-binary", f"@{body}"]
    out = accel.client("curl", [*argv, nginx.url("random")]).finish()
    assert out in ("405", "413"), out


# Header and body in two sends each, as http.client and ASGI servers make them.
BEHIND = """
import asyncio, sys
async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            body = b"%d" % len(await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body))
            writer.write(body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    await (await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""

POSTS = """
import http.client, sys
for _ in range(400):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
    for number in range(20):
        length = 100 + 37 * number
        connection.request("POST", "/behind", body=b"x" * length)
        assert connection.getresponse().read() == b"%d" % length
    connection.close()
print("answered")
"""


def test_nginx_before_a_server_of_small_messages(accel, world):
    """nginx waits by edges and takes a short read for all that there is: no edge is lost where TCP's bytes end and a lane's begin."""
    port = free_port()
    accel.server("behind", [sys.executable, "-c", BEHIND, port]).wait_listening(port)
    nginx = Nginx(accel, world, behind=port)
    assert accel.client("posts", [sys.executable, "-c", POSTS, nginx.port]).finish(60) == "answered\n"
    # In the mode "server" nginx and the server behind it have lanes between them.
    if accel.mode != "server":
        accel.verify(lanes=100, lane_bytes=100_000)
    nginx.check()
