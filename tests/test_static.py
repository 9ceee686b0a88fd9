"""Programs of other projects that no library is loaded into, under `shunpike run --entry=syscall`: hyper's and tokio's in Rust, BusyBox's HTTP.
Their results are the same as on TCP."""

import hashlib
import os

import pytest

from packages import MUSL, by_cargo, debian
from procs import free_port
from test_go import line, under
from test_programs_hard import content, curl, hard, hash_of  # noqa: F401 (fixtures)

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
