"""Network namespaces with unique names, joined by veth, removed with the test."""

import os
import subprocess

import pytest

from harness import unique

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root")


def ip(*arguments, netns=None):
    inside = ["-n", netns] if netns else []
    subprocess.run(["ip", *inside, *map(str, arguments)], check=True)


def namespace(world, label):
    """A new namespace with its loopback up; its name."""
    name = unique(f"sp-{label}-")
    ip("netns", "add", name)
    world.cleanups.append(lambda: ip("netns", "del", name))
    ip("link", "set", "lo", "up", netns=name)
    return name


def join(left, right, subnet, subnet6=None):
    """Joins two namespaces: `left` becomes SUBNET.1, `right` SUBNET.2, and SUBNET6::1 and ::2. The pair goes with its
    namespaces."""
    ends = [unique("sp"), unique("sp")]
    ip("link", "add", ends[0], "netns", left, "type", "veth", "peer", "name", ends[1], "netns", right)
    for number, (netns, end) in enumerate(zip((left, right), ends, strict=True), 1):
        ip("addr", "add", f"{subnet}.{number}/24", "dev", end, netns=netns)
        if subnet6:
            ip("addr", "add", f"{subnet6}::{number}/64", "dev", end, "nodad", netns=netns)
        ip("link", "set", end, "up", netns=netns)
    return f"{subnet}.1", f"{subnet}.2"


def nat(router, port, address):
    """Makes `router` forward what comes to its `port` to `address`, under its own address."""
    rules = f"""
        table ip shunpike {{
            chain in  {{ type nat hook prerouting priority dstnat; tcp dport {port} dnat to {address}; }}
            chain out {{ type nat hook postrouting priority srcnat; ip daddr {address} masquerade; }}
        }}"""
    subprocess.run(["ip", "netns", "exec", router, "nft", "-f", "-"], input=rules, text=True, check=True)
    enable = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    subprocess.run(["ip", "netns", "exec", router, "sh", "-c", enable], check=True)
