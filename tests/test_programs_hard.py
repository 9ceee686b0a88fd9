"""Real programs, harder: reloaded, forked, spliced, handed over and closed under load.

Each with one side or both under Shunpike in the default setting, and `eager`: both with --eager, where short connections are on
lanes too. What must hold in all of them: the results are right, nothing crashes, all ends by itself.
"""

import hashlib
import os
import pwd
import re
import signal
import sys
import time

import pytest

from harness import Accel, programs
from procs import finish_together, free_port, sockets, stacks, still_open, until
from web import Nginx, requests_of

pytestmark = pytest.mark.programs
HARD_MODES = ("client", "server", "both", "eager")
CONTENT_BYTES = 10_000_000


@pytest.fixture(params=HARD_MODES)
def hard(request, world):
    return start(world, request.param)


def start(world, mode):
    return Accel(world, "both", ["--eager"]) if mode == "eager" else Accel(world, mode)


@pytest.fixture
def content(world):
    """A directory with one random file, `random`; its hash."""
    root = world.directory / "www"
    root.mkdir()
    data = os.urandom(CONTENT_BYTES)
    (root / "random").write_bytes(data)
    return root, hashlib.sha256(data).hexdigest()


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def curl(accel, world, url, name="got"):
    """What `curl` gets from `url`, as a hash."""
    got = world.directory / name
    accel.client("curl", ["curl", "-sS", "--fail", "-o", got, url]).finish()
    return hash_of(got)


# nginx: one request for each connection, as a keep-alive connection that the old worker closes while a request is on its
# way is HTTP's own race, on TCP too. Where others keep the CPUs a request may take seconds, more than wrk waits for by
# default: one that hangs is seen by its socket, which stays.

def test_nginx_reloaded_under_load_fails_no_request(hard, world, content):
    nginx = Nginx(hard, world)
    argv = ["wrk", "-t2", "-c16", "-d120s", "--timeout", "60s", "-H", "Connection: close", nginx.url("hello")]
    load = hard.client("wrk", argv)
    for _ in range(3):
        assert curl(hard, world, nginx.url("random")) == content[1]
        world.start("reload", [*nginx.argv, "-s", "reload"]).finish()
        time.sleep(1)  # the reload's rate, not a wait for anything
    under_way = sockets(load.pid)
    until(lambda: not still_open(load.pid, under_way), lambda: f"requests hang: {stacks(load.pid)}", seconds=30)
    load.signal(signal.SIGINT)  # wrk ends early, with its report
    requests, errors, bad = requests_of(load.finish())
    assert requests > 100 and errors == 0 and bad == 0, f"{load.out}{hard.broker.stats()}"
    nginx.check()
    hard.verify(more=lambda: curl(hard, world, nginx.url("random")) and None)


# redis


def redis_server(accel, world, name, under):
    port, directory = free_port(), world.directory / name
    directory.mkdir()
    argv = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory,
            "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]  # fmt: skip
    under(name, argv).wait_listening(port)
    return port


def test_redis_saves_and_replicates_in_a_loop(hard, world):
    """BGSAVE's children and the replica's full synchronisations, again and again, under load; both data sets are equal."""
    master = redis_server(hard, world, "master", hard.server)
    replica = redis_server(hard, world, "replica", hard.client)

    def ask(port, *command):
        return world.start("ask", ["redis-cli", "-p", port, *command]).finish().strip()

    sizes = ["-c", 10, "-n", 20000, "-r", 5000, "-d", 512, "-t", "set,lpush,hset", "-q"]
    load, turns = hard.client("load", ["redis-benchmark", "-p", master, *sizes]), 0
    while load.popen.poll() is None or turns < 3:
        ask(replica, "REPLICAOF", "127.0.0.1", master)
        until(lambda: "master_link_status:up" in ask(replica, "INFO", "replication"), "the replica is up", 30, pause=0.1)
        # It may be saving already, for the replica.
        until(lambda: ask(master, "BGSAVE") == "Background saving started", "a save begins", 30, pause=0.1)
        until(lambda: "rdb_bgsave_in_progress:0" in ask(master, "INFO"), "the save ends", 30, pause=0.1)
        turns += 1
        if load.popen.poll() is None:
            ask(replica, "REPLICAOF", "NO", "ONE")
    load.finish(60)
    ask(replica, "REPLICAOF", "127.0.0.1", master)
    equal = lambda: ask(master, "DEBUG", "DIGEST") == ask(replica, "DEBUG", "DIGEST")
    until(equal, "both have the same data", 30, pause=0.2)
    assert "rdb_last_bgsave_status:ok" in ask(master, "INFO")
    hard.verify(lanes=10, lane_bytes=1 << 20)


# memcached


def test_memcached_with_sixteen_threads(hard):
    port = free_port()
    argv = ["memcached", "-t", 16, "-p", port, "-l", "127.0.0.1", "-U", 0, "-u", "root", "-m", 128]
    hard.server("memcached", argv).wait_listening(port)
    client = [sys.executable, programs() / "cache_client.py", "memcached", port, 48, 60]

    def dialogue():
        assert len(set(hard.client("load", client).finish(60).split())) == 48

    dialogue()
    hard.verify(lanes=16, lane_bytes=16 * 60 * 1000, more=dialogue)


# Apache: as its user, since only a server that changes its user has workers of another user than the broker's.

APACHE = """
ServerRoot {dir}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {dir}/apache.pid
ErrorLog {dir}/error.log
Mutex posixsem
LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule status_module /usr/lib/apache2/modules/mod_status.so
DocumentRoot {dir}/www
KeepAlive On
MaxKeepAliveRequests 0
EnableSendfile On
EnableMMAP Off
"""


def own_user(name):
    """The user as whom a server runs that refuses root, or that would change to a user of its own."""
    return name if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize("mode", HARD_MODES)
@pytest.mark.parametrize("mpm", ["prefork", "event"])
def test_apache(world, mode, mpm, content):
    root, wanted = content
    (root / "hello").write_text("hello from Apache\n")
    conf, port = world.directory / "apache.conf", free_port()
    conf.write_text(APACHE.format(dir=world.directory, port=port, mpm=mpm))
    if os.getuid() == 0:
        world.become(own_user("www-data"))
    accel = start(world, mode)
    argv = ["apache2", "-f", conf, "-d", world.directory, "-DFOREGROUND"]
    accel.server("apache", argv).wait_listening(port)
    url = f"http://127.0.0.1:{port}"
    assert curl(accel, world, f"{url}/random") == wanted
    # prefork serves a connection in a process: at most as many as it starts soon.
    report = accel.client("wrk", ["wrk", "-t2", "-c8", "-d1s", f"{url}/hello"]).finish()
    requests, errors, bad = requests_of(report)
    assert requests > 50 and errors == 0 and bad == 0, report + (world.directory / "error.log").read_text()
    # Apache's listeners defer accept until there are bytes on TCP: --eager waits its whole moment for each connection.
    for options in ([], ["-k"]):
        report = accel.client("ab", ["ab", "-q", "-n", 60, "-c", 4, *options, f"{url}/hello"]).finish()
        assert re.search(r"Complete requests: +60\n", report) and re.search(r"Failed requests: +0\n", report), report
    world.start("graceful", [*argv[:-1], "-k", "graceful"]).finish()
    assert curl(accel, world, f"{url}/random") == wanted
    log = (world.directory / "error.log").read_text()
    assert "exit signal" not in log, log
    accel.verify(lanes=2, lane_bytes=10_000)


# HAProxy

HAPROXY = """
global
    maxconn 200
defaults
    mode tcp
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    {splice}
frontend front
    bind 127.0.0.1:{front}
    default_backend back
backend back
    server one 127.0.0.1:{back}
"""


# Always: what is spliced from the first byte on never earns a lane. By itself: when HAProxy takes a connection for a stream,
# which may be on a lane by then and has to leave it.
SPLICE = {"always": "option splice-request\n    option splice-response", "auto": "option splice-auto"}


@pytest.mark.parametrize("when", SPLICE)
def test_haproxy_splices(hard, world, content, when):
    """curl, HAProxy and nginx: what HAProxy moves with splice() arrives whole, many at a time."""
    front, conf = free_port(), world.directory / "haproxy.conf"
    # With one side under Shunpike that is HAProxy between two that are not, or the two without HAProxy.
    nginx = Nginx(hard, world, start=hard.client)
    conf.write_text(HAPROXY.format(front=front, back=nginx.port, splice=SPLICE[when]))
    hard.server("haproxy", ["haproxy", "-db", "-f", conf]).wait_listening(front)
    url = f"http://127.0.0.1:{front}"
    got = [world.directory / f"got{n}" for n in range(4)]
    finish_together(*(hard.client("curl", ["curl", "-sS", "--fail", "-o", path, f"{url}/random"]) for path in got), seconds=40)
    assert {hash_of(path) for path in got} == {content[1]}
    requests, errors, bad = requests_of(hard.client("wrk", ["wrk", "-t2", "-c8", "-d1s", f"{url}/hello"]).finish())
    assert requests > 50 and errors == 0 and bad == 0
    if when == "auto":
        hard.verify(lanes=4)
