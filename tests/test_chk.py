"""`chk`: that what it says of a connection is so: across network namespaces, through published ports, of proxies and Go programs."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import Accel
from netns import ip, join, namespace, needs_root
from procs import free_port, until

pytestmark = pytest.mark.operators

SERVING = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
if sys.argv[3:]:
    open("/proc/self/comm", "w").write(sys.argv[3])
held = []
while True:
    held.append(listener.accept())
"""


def findings_of(broker, *arguments, netns=None):
    """What `chk` finds, by name, and whether there would be a lane."""
    inside = ["ip", "netns", "exec", netns] if netns else []
    env = broker.world.env | {"SHUNPIKE_SOCKET": str(broker.socket)}
    argv = [*inside, broker.world.binary, "chk", "--json", *arguments]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    answer = json.loads(result.stdout)
    assert bool(answer["lane"]) == (result.returncode == 0), result
    return answer["lane"], {finding["name"]: finding for finding in answer["findings"]}


@needs_root
@pytest.mark.namespaces
@pytest.mark.parametrize("sees", [True, False], ids=["privileged", "unprivileged"])
def test_chk_looks_into_other_network_namespaces(world, sees):
    """It called an address of the next container one of another host, and a lane between the two impossible."""
    prefix = () if sees else ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all")
    broker = world.broker(prefix=prefix)
    server_side, client_side, port = namespace(world, "s"), namespace(world, "c"), free_port()
    address, _ = join(server_side, client_side, "10.207.9")
    env = {"SHUNPIKE_SOCKET": str(broker.socket)}
    server = world.start("server", [world.binary, "run", "--", sys.executable, "-c", SERVING, address, port], netns=server_side, env=env)
    server.wait_listening(port)
    for options in ([], ["--connect"]):
        lane, found = findings_of(broker, *options, f"{address}:{port}", netns=client_side)
        assert lane == sees and found["namespaces"]["is_so"] == sees, found
        assert f"PID {server.pid}" in found["listener"]["text"] and found["library"]["is_so"], found
    lane, found = findings_of(broker, f"{address}:{free_port()}", netns=client_side)
    assert not lane and found["this host"]["is_so"] and found["listener"]["is_so"] is False, found
    lane, found = findings_of(broker, "--connect", f"{address}:{free_port()}", netns=client_side)
    assert not lane and "refused" in found["connect"]["text"], found
    server.stop()


@needs_root
@pytest.mark.namespaces
def test_chk_connects_through_a_published_port(world):
    broker = world.broker()
    server_side, router, client_side, port = namespace(world, "s"), namespace(world, "r"), namespace(world, "c"), free_port()
    address, _ = join(server_side, router, "10.207.10")
    at_router, _ = join(router, client_side, "10.207.11")
    ip("route", "add", "default", "via", "10.207.10.2", netns=server_side)
    rules = f"""
        table ip published {{
            chain in {{ type nat hook prerouting priority dstnat; tcp dport 8080 dnat to {address}:{port}; }}
        }}"""
    subprocess.run(["ip", "netns", "exec", router, "nft", "-f", "-"], input=rules, text=True, check=True)
    subprocess.run(["ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    env = {"SHUNPIKE_SOCKET": str(broker.socket)}
    server = world.start("server", [world.binary, "run", "--", sys.executable, "-c", SERVING, address, port], netns=server_side, env=env)
    server.wait_listening(port)
    lane, found = findings_of(broker, f"{at_router}:8080", netns=client_side)
    assert not lane and "--connect" in found["this host"]["advice"], "no process is seen in the router's namespace"
    lane, found = findings_of(broker, "--connect", f"{at_router}:8080", netns=client_side)
    assert lane, found
    assert f"PID {server.pid}" in found["listener"]["text"] and found["namespaces"]["is_so"], found
    masquerade = "table ip hides {\n chain out {\n type nat hook postrouting priority srcnat; masquerade\n }\n}\n"
    subprocess.run(["ip", "netns", "exec", router, "nft", "-f", "-"], input=masquerade, text=True, check=True)
    lane, found = findings_of(broker, "--connect", f"{at_router}:8080", netns=client_side)
    assert lane is None and found["connect"]["is_so"] is None, "behind an address that hides ours nothing is claimed"
    server.stop()


def test_chk_names_an_engines_proxy(world):
    accel, port = Accel(world, "server"), free_port()
    accel.server("proxy", [sys.executable, "-c", SERVING, "127.0.0.1", port, "docker-proxy"]).wait_listening(port)
    lane, found = findings_of(accel.broker, f"127.0.0.1:{port}")
    assert not lane and "docker-proxy" in found["proxy"]["text"] and "userland-proxy" in found["proxy"]["advice"], found


SHARING = """
import socket, sys, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
print("listens", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("first", ["ours", "other"])
def test_chk_looks_at_all_that_share_an_address(world, first):
    """The kernel may give the connection to either (SO_REUSEPORT). It was a success or a failure by who had come first."""
    accel, port = Accel(world, "server"), free_port()
    for whose in ("ours", "other") if first == "ours" else ("other", "ours"):
        argv = [sys.executable, "-c", SHARING, port]
        proc = accel.server(whose, argv) if whose == "ours" else world.start(whose, argv)
        until(lambda proc=proc: proc.out, proc.describe)
    lane, found = findings_of(accel.broker, f"127.0.0.1:{port}")
    assert "and 1 more" in found["listener"]["text"], found
    assert lane is None and found["library"]["is_so"] is None and "which of them accepts" in found["library"]["text"], found


@pytest.mark.skipif(not shutil.which("go"), reason="needs go")
def test_chk_knows_a_go_program(world):
    """The library is loaded into one that uses libc for names, and sees none of its calls."""
    accel, port = Accel(world, "server"), free_port()
    source = world.directory / "serve.go"
    source.write_text('package main\nimport ("net"; "os")\nfunc main() { l, _ := net.Listen("tcp", "127.0.0.1:"+os.Args[1]); for { l.Accept() } }\n')
    env = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-ldflags=-s -w", "-o", world.directory / "serve", source], check=True, env=env)
    world.start("server", [world.directory / "serve", port]).wait_listening(port)
    lane, found = findings_of(accel.broker, f"127.0.0.1:{port}")
    assert not lane and "is a Go program" in found["library"]["text"], found
