"""redis and memcached: random payloads compared, then the load that their users measure with."""

import csv
import sys

import pytest

from harness import programs
from procs import free_port, until

pytestmark = pytest.mark.programs


@pytest.fixture
def redis(accel):
    port = free_port()
    argv = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
    accel.server("redis-server", argv).wait_listening(port)
    return port


@pytest.fixture
def memcached(accel):
    port = free_port()
    argv = ["memcached", "-t", "4", "-p", port, "-l", "127.0.0.1", "-U", "0", "-u", "root", "-m", "128"]
    accel.server("memcached", argv).wait_listening(port)
    return port


def random_payloads(accel, kind, port):
    def dialogue():
        out = accel.client("payloads", [sys.executable, programs() / "cache_client.py", kind, port, 8, 150]).finish()
        assert len(set(out.split())) == 8, "a hash for each connection, all different"

    dialogue()
    accel.verify(lanes=4, lane_bytes=8 * 150 * 1000, more=dialogue)


def test_redis_keeps_random_payloads(accel, redis):
    random_payloads(accel, "redis", redis)


def test_memcached_keeps_random_payloads(accel, memcached):
    random_payloads(accel, "memcached", memcached)


def test_redis_benchmark(accel, redis):
    """-c 50 and pipelining: every request answered, on 50 lanes at a time."""
    argv = ["redis-benchmark", "-p", redis, "-t", "set,get,lrange_100", "-c", 50, "-n", 20000, "-d", 1024, "--csv"]
    rows = {row["test"]: float(row["rps"]) for row in csv.DictReader(accel.client("load", argv).finish(60).splitlines())}
    assert {"SET", "GET"} <= rows.keys() and all(rate > 0 for rate in rows.values()), rows
    piped = ["redis-benchmark", "-p", redis, "-t", "get", "-c", 10, "-n", 50000, "-P", 16, "-d", 1024, "--csv"]
    assert "GET" in accel.client("piped", piped).finish(60)
    accel.verify(lanes=50, lane_bytes=10 << 20)


def test_redis_saves_in_a_child_under_load(accel, world, redis):
    """BGSAVE forks with all connections open; the child's end must not end one of them."""
    load = accel.client("load", ["redis-benchmark", "-p", redis, "-t", "set,get", "-c", 20, "-n", 40000, "-d", 1024, "-q"])
    saves = 0
    while load.popen.poll() is None or saves == 0:
        assert "started" in world.start("bgsave", ["redis-cli", "-p", redis, "BGSAVE"]).finish()
        idle = lambda: "rdb_bgsave_in_progress:0" in world.start("info", ["redis-cli", "-p", redis, "INFO"]).finish()
        until(idle, "the save ends", seconds=20, pause=0.1)
        assert "rdb_last_bgsave_status:ok" in world.start("info", ["redis-cli", "-p", redis, "INFO"]).finish()
        saves += 1
    load.finish()
    accel.verify(lanes=20, lane_bytes=1 << 20)
