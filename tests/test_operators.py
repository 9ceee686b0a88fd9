"""What an operator turns, under programs that run: settings take effect without a restart of anything."""

import json

import pytest

from operators import Pair, asked

pytestmark = pytest.mark.operators

def test_a_programs_lanes_follow_the_device(world):
    pair = Pair(world)
    pair.has("SMCD")
    pair.talk()
    moved = int(pair.broker.tool("device", "get", "xfer_bytes"))
    assert moved > 0 and int(pair.broker.tool("device", "get", "dmbs_cnt")) == 2
    pair.broker.tool("device", "set", "loopback-ism", "active", "off")
    pair.has("TCP 0x0a010002")
    pair.broker.tool("sysctl", "-w", "active=1")
    pair.has("SMCD")
    pair.talk()  # the lane may have come with the last call of the talk before
    assert int(pair.broker.tool("device", "get", "loopback-ism", "xfer_bytes")) > moved
    pair.close()


def test_wmem_bounds_what_a_sender_has_under_way(world):
    """At run time, for a lane that is open: less first, then as before."""
    pair = Pair(world, "--set", "wmem=64K")
    pair.has("SMCD")
    pair.talk(size=1 << 20, times=64)
    assert 0 < pair.sending()["window"] <= 64 << 10, pair.sending()
    assert pair.sending()["ring"] == 8 << 20
    pair.broker.tool("sysctl", "-w", "wmem=16M")
    pair.talk(size=1 << 20, times=64)
    assert pair.sending()["window"] > 64 << 10, pair.sending()
    pair.close()


def test_rmem_is_the_size_of_new_rings(world):
    pair = Pair(world)
    pair.broker.tool("sysctl", "-w", "rmem=128K")
    pair.has("SMCD")
    assert pair.sending()["ring"] == 128 << 10
    pair.close()


def test_a_full_link_group_is_followed_by_another(world):
    pair = Pair(world, "--set", "max_conns_per_lgr=16")
    pair.has("SMCD", connections=20)
    groups = json.loads(pair.broker.tool("linkgroup", "--json"))["link_groups"]
    assert sorted(group["conns"] for group in groups) == [4, 16]
    pair.broker.tool("sysctl", "-w", "net.smc.smcr_max_conns_per_lgr=255")
    pair.has("SMCD", connections=40)
    groups = json.loads(pair.broker.tool("linkgroup", "--json"))["link_groups"]
    assert len(groups) == 2, f"further ones find room in the groups that there are: {groups}"
    pair.close()


def test_a_setting_that_cannot_be_is_refused_with_the_reason(world):
    broker = world.broker()
    for arguments, words in [
        (("sysctl", "-w", "rmem=1"), ("rmem=1", "16384 to 16777216")),
        (("sysctl", "autocorking_size"), ("autocorking_size", "SMC has this setting", "held back")),
        (("sysctl", "-w", "net.smc.smcr_testlink_time=5"), ("smcr_testlink_time", "SMC-R")),
        (("device", "set", "dmb_type", "physical"), ("physical", "virtual")),
    ]:
        status, said = asked(broker, *arguments)
        assert status == 1 and all(word in said for word in words), f"{arguments}: {said}"
        assert len(said.splitlines()) == 1, said
