"""dist/compose by Debian's docker-compose and Docker, with images of the test's own by the names that the file has."""

import shutil

import pytest

import engines
import roots
from harness import ROOT, Stats
from netns import namespace, needs_root
from procs import PATIENCE, until
from test_engines import installed  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.namespaces, needs_root, engines.needs("dockerd", "/usr/bin/docker", "runc", "docker-compose", "redis-server", "redis-benchmark")]

FILE = ROOT / "dist/compose/compose.yaml"
REDIS = "root:x:0:0::/:\nredis:x:999:999::/:\n"


def redis_image(world):
    """Redis and its benchmark, and their user."""
    programs = [shutil.which(name) for name in ("redis-server", "redis-benchmark")]
    return engines.image(world, *programs, name="redis", users=REDIS)


def test_docker_compose_up_joins_redis_and_its_benchmark(world, installed):  # noqa: F811
    images = {"debian:bookworm-slim": engines.image(world, base=roots.debian("debian12"), name="debian"), "redis:7-bookworm": redis_image(world)}
    engine = engines.Docker(world, images, netns=namespace(world, "a"))
    prefix = f"SHUNPIKE_PREFIX={installed.parent.parent}"
    compose = lambda *words: engine.ran("env", prefix, "docker-compose", "--file", FILE, "--project-name", "lanes", *words)
    compose("up", "--detach")
    stats = lambda: Stats.parse(compose("exec", "-T", "broker", "/usr/local/bin/shunpike", "stats", "--json"))
    until(lambda: stats().lanes >= 10, lambda: f"lanes: {stats()} {compose('logs')}", seconds=60 * PATIENCE, pause=0.5)
    until(lambda: "requests per second" in compose("logs", "benchmark"), lambda: compose("logs"), seconds=60 * PATIENCE, pause=0.5)
    compose("down", "--volumes", "--timeout", "2")
    assert not engine("ps", "--all", "--quiet") and not engine("volume", "ls", "--quiet")
