"""Real programs that hand connections on, start others, or make their own system calls.

Each in the modes of test_programs_hard.py. What is handed to a program that is not under Shunpike, and what goes round
libc, is on TCP; all else may be on lanes. The results must be right and the ends clean in all of them.
"""

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import programs
from procs import finish_together, free_port
from test_programs_hard import curl, content, hard, hash_of  # noqa: F401 (fixtures)

pytestmark = pytest.mark.programs


def ask_lines(accel, port, connections, lines):
    client = accel.client("client", [sys.executable, programs() / "lines_client.py", port, connections, lines])
    assert client.finish(60) == f"all {connections}\n"


# Node


@pytest.mark.parametrize("how", ["accept", "later"])
def test_node_cluster_hands_connections_over(hard, how):
    """SCM_RIGHTS from the primary to its workers: right after accept, and after a hundred answers."""
    port = free_port()
    hard.server("cluster", ["node", programs() / "cluster.js", how, port]).wait_listening(port)
    ask_lines(hard, port, 6, 250)
    # A connection that was handed over stays on TCP: what the other process has received is not ours to know.
    if how == "later":
        hard.verify(lane_bytes=10_000)


# Python


def test_python_spawns_during_transfers(hard):
    """subprocess with close_fds, vfork and fork, in a server whose other threads are sending."""
    port = free_port()
    server = hard.server("server", [sys.executable, programs() / "spawning_server.py", port, 6]).wait_listening(port)
    ask_lines(hard, port, 6, 300)
    assert int(re.fullmatch(r"ran (\d+)\n", server.finish(60)).group(1)) >= 10
    hard.verify(lanes=3, lane_bytes=100_000)


# Java


@pytest.fixture(scope="session")
def java(tmp_path_factory):
    """The command that runs Transfer.class. Without the performance file that the JVM leaves in /tmp while it runs."""
    classes = tmp_path_factory.mktemp("classes")
    subprocess.run(["javac", "-d", str(classes), str(programs() / "Transfer.java")], check=True)
    return ["java", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", classes, "Transfer"]


def test_java_transfers_files(hard, world, content, java):  # noqa: F811
    """FileChannel.transferTo (sendfile) and transferFrom, one file after the other on one connection."""
    port, got = free_port(), world.directory / "got"
    server = hard.server("server", [*java, "serve", port, content[0] / "random"]).wait_listening(port)
    out, _ = finish_together(hard.client("client", [*java, "fetch", port, got]), server, seconds=60)
    assert out == "fetched 30\n" and hash_of(got) == content[1]
    hard.verify(lane_bytes=1 << 20)


def test_java_closes_a_channel_under_a_blocked_read(hard, content, java):  # noqa: F811
    def dialogue():
        port = free_port()
        server = hard.server("server", [*java, "serve", port, content[0] / "random"]).wait_listening(port)
        out, _ = finish_together(hard.client("client", [*java, "close", port, "-"]), server, seconds=60)
        assert out.splitlines() == ["read: closed", "reader ended: true"]

    dialogue()
    # Beside load, no read of a server that is behind its client has to wait.
    hard.verify(lane_bytes=1_000, more=dialogue)


# ssh

SSHD = """
ListenAddress 127.0.0.1
Port {port}
HostKey {dir}/host
AuthorizedKeysFile {dir}/user.pub
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""


@pytest.fixture
def sshd(hard, world):  # noqa: F811
    """A server; the options for ssh and scp. sshd executes itself for each connection, then forks, drops its rights, goes
    into a chroot and under a seccomp filter."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", world.directory / name], check=True)
    port, conf = free_port(), world.directory / "sshd.conf"
    conf.write_text(SSHD.format(dir=world.directory, port=port))
    jail = Path("/run/sshd")
    if os.getuid() == 0 and not jail.exists():
        jail.mkdir(mode=0o755)
        world.cleanups.append(jail.rmdir)
    sshd = shutil.which("sshd", path=world.env["PATH"])
    hard.server("sshd", [sshd, "-D", "-e", "-f", conf]).wait_listening(port)
    return ["-i", world.directory / "user", "-o", f"Port={port}", "-o", "BatchMode=yes", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]  # fmt: skip


def test_sshd_ssh_and_scp(hard, world, content, sshd):  # noqa: F811
    source, there, back = content[0] / "random", world.directory / "there", world.directory / "back"
    host = pwd.getpwuid(os.getuid()).pw_name + "@127.0.0.1"
    hard.client("scp", ["scp", "-q", *sshd, source, f"{host}:{there}"]).finish()
    hard.client("scp", ["scp", "-q", *sshd, f"{host}:{there}", back]).finish()
    assert hash_of(there) == hash_of(back) == content[1]
    out = hard.client("ssh", ["ssh", *sshd, host, f"sha256sum < {there}; exit 7"]).finish(status=7)
    assert out.split()[0] == content[1]


def test_rsync_over_ssh(hard, world, content, sshd):  # noqa: F811
    target = world.directory / "target"
    host = pwd.getpwuid(os.getuid()).pw_name + "@127.0.0.1"
    shell = " ".join(str(part) for part in ["ssh", *sshd])
    hard.client("rsync", ["rsync", "-a", "-e", shell, f"{content[0]}/", f"{host}:{target}/"]).finish()
    assert hash_of(target / "random") == content[1]


def test_rsync_daemon(hard, world, content):  # noqa: F811
    """rsync's own protocol: the receiver forks, and parent and child go on using the one connection."""
    port, conf, tree = free_port(), world.directory / "rsyncd.conf", content[0] / "tree"
    tree.mkdir()
    for number in range(300):
        (tree / f"file-{number}").write_bytes(os.urandom(number * 97))
    identity = "uid = root\ngid = root\n" if os.getuid() == 0 else ""
    conf.write_text(f"use chroot = no\n{identity}[www]\npath = {content[0]}\nread only = no\n")
    argv = ["rsync", "--daemon", "--no-detach", f"--config={conf}", "--address=127.0.0.1", f"--port={port}"]
    hard.server("rsyncd", argv).wait_listening(port)
    url, got = f"rsync://127.0.0.1:{port}/www", world.directory / "got"
    hard.client("pull", ["rsync", "-a", f"{url}/", f"{got}/"]).finish()
    hard.client("push", ["rsync", "-a", f"{got}/tree/", f"{url}/pushed/"]).finish()
    hard.client("again", ["rsync", "-a", "--checksum", "--delete", f"{got}/tree/", f"{url}/pushed/"]).finish()
    for place in (got / "tree", content[0] / "pushed"):
        assert all(hash_of(place / path.name) == hash_of(path) for path in tree.iterdir())
    assert hash_of(got / "random") == content[1]
    # Its connections are shared by processes from early on; whether one earns a lane before that is theirs to choose.


# socat


@pytest.mark.parametrize("how", ["EXEC:cat", "EXEC:cat,nofork", "SYSTEM:cat"])
def test_socat_executes(hard, world, content, how):  # noqa: F811
    """A program behind each connection: through socat, or (nofork) with the connection itself as standard input and output."""
    port = free_port()
    hard.server("socat", ["socat", f"TCP4-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork", how]).wait_listening(port)
    clients = []
    for _ in range(3):
        with open(content[0] / "random", "rb") as stdin:
            clients.append(hard.client("client", ["socat", "-t", 30, "STDIO", f"TCP4:127.0.0.1:{port}"], stdin=stdin))
    for client in clients:
        client.finish(60)
        assert hash_of(client.out_path) == content[1]


# Go


@pytest.fixture(scope="session", params=["static", "cgo"])
def talk(request, tmp_path_factory):
    """A Go program: static, so that no library can be loaded into it; or with libc, which it uses for names only."""
    program = tmp_path_factory.mktemp("go") / "talk"
    env = os.environ | {"GO111MODULE": "off", "CGO_ENABLED": "1" if request.param == "cgo" else "0"}
    subprocess.run(["go", "build", "-o", str(program), str(programs() / "talk.go")], check=True, env=env)
    return program


def test_go_server(hard, world, content, talk):  # noqa: F811
    port = free_port()
    hard.server("files", [talk, "files", port, content[0]]).wait_listening(port)
    for _ in range(3):
        assert curl(hard, world, f"http://127.0.0.1:{port}/random") == content[1]
    assert hard.broker.stats().smc == 0


def test_go_client_of_redis(hard, talk):  # noqa: F811
    port = free_port()
    argv = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    hard.server("redis-server", argv).wait_listening(port)
    hashes = hard.client("talk", [talk, "redis", port, 6]).finish(60).split()
    assert len(set(hashes)) == 6
    assert hard.broker.stats().smc == 0
