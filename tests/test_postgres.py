"""PostgreSQL: a process for each connection, accepted by the postmaster, which then closes its copy."""

import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

import harness
from procs import free_port, until
from test_tap import Tap

pytestmark = pytest.mark.programs


@pytest.fixture(scope="session")
def bindir():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert found, "no PostgreSQL server: run ci/deps"
    return found[-1]


@pytest.fixture(scope="session")
def owner():
    """The user of the database: PostgreSQL refuses root."""
    return "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(scope="session")
def cluster(bindir, owner):
    """An initialised cluster with pgbench's tables, made once and copied for each test."""
    directory = Path(tempfile.mkdtemp(prefix=harness.SCRATCH))
    shutil.chown(directory, owner)
    identity = {"user": owner, "extra_groups": []} if os.getuid() == 0 else {}

    def call(*argv):
        subprocess.run([str(part) for part in argv], check=True, cwd=directory, stdout=subprocess.DEVNULL, **identity)

    data = directory / "data"
    call(bindir / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--no-instructions")
    start = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off"
    call(bindir / "pg_ctl", "-D", data, "-w", "-l", directory / "log", "-o", start, "start")
    call(bindir / "pgbench", "-h", directory, "-U", "postgres", "-i", "-q", "-s", "1", "postgres")
    call(bindir / "pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
    yield data
    shutil.rmtree(directory)


@pytest.fixture
def postgres(world, mode, cluster, bindir, owner):
    """A server in one of the modes. Broker and both ends run as the database's user: an unprivileged broker serves one."""
    data = world.directory / "data"
    subprocess.run(["cp", "-a", cluster, data], check=True)
    if os.getuid() == 0:
        world.become(owner)
    accel = harness.Accel(world, mode)
    port = free_port()
    settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
                "log_min_messages": "log", "max_connections": 50}  # fmt: skip
    argv = [bindir / "postgres", "-D", data, *(part for key, value in settings.items() for part in ("-c", f"{key}={value}"))]
    server = accel.server("postgres", argv, stop_signal=signal.SIGINT)  # SIGINT: "fast" shutdown
    server.wait_listening(port)
    # It listens before it serves.
    until(lambda: "ready to accept connections" in server.err, server.describe, seconds=30)
    yield accel, port
    assert "was terminated by signal" not in server.err, server.err


@pytest.mark.parametrize("mode", harness.MODES)
@pytest.mark.parametrize("options", [["-S"], [], ["-C", "-S"]], ids=["select", "write", "connect"])
def test_pgbench(postgres, bindir, options):
    accel, port = postgres
    argv = [bindir / "pgbench", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-c", 8, "-j", 2, "-T", 2, "-n", *options]
    report = accel.client("pgbench", [*argv, "postgres"]).finish()
    assert int(re.search(r"transactions actually processed: (\d+)", report).group(1)) > 50, report
    assert re.search(r"failed transactions: 0 ", report), report
    if "-C" in options:  # short connections: whether they earn a lane is theirs to choose; all must work
        return
    accel.verify(lanes=8, lane_bytes=50_000)


@pytest.mark.parametrize("mode", harness.MODES)
def test_psql_gets_what_it_stored(postgres, bindir):
    accel, port = postgres
    query = ("drop table if exists blobs; create table blobs as select n, repeat(md5(n::text), 500) as body from generate_series(1, 2000) n;"
             " select md5(string_agg(body, '' order by n)) from blobs; select body from blobs order by n;")  # fmt: skip
    argv = [bindir / "psql", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-X", "-q", "-A", "-t", "-c", query]

    def dialogue():
        lines = accel.client("psql", [*argv, "postgres"]).finish().split()
        assert len(lines) == 2001
        assert hashlib.md5("".join(lines[1:]).encode()).hexdigest() == lines[0]

    dialogue()
    accel.verify(lane_bytes=10_000_000, more=dialogue)


@pytest.mark.parametrize("mode", ["both"])
def test_tshark_reads_it_from_a_tap(postgres, world, bindir):
    """Queries and their rows, of connections that a forked server process has on lanes."""
    accel, port = postgres
    tap = Tap(world, accel.broker, f"port {port}")
    argv = [bindir / "pgbench", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-c", 2, "-T", 2, "-n", "-S"]
    accel.client("pgbench", [*argv, "postgres"]).finish()
    tap.end()
    as_postgres = ("-d", f"tcp.port=={port},pgsql")
    queries = tap.fields("pgsql.query", "tcp.dstport", "pgsql.query", options=as_postgres)
    assert len(queries) > 100 and {to for to, _ in queries} == {str(port)}
    assert all("SELECT abalance FROM pgbench_accounts" in query for _, query in queries), queries[:3]
    rows = tap.fields('pgsql.type == "Data row"', "tcp.srcport", options=as_postgres)
    assert len(rows) > 100 and set(rows) == {(str(port),)}
