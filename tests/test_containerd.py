"""Pods of containerd by its CRI, where ci/containerd has built it: one has the device by our NRI plugin, another as kubelet passes it on."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import engines
from harness import ROOT, TARGET, Accel, unique
from netns import needs_root
from packages import by_go
from procs import free_port, until
from test_engines import generate, installed  # noqa: F401 (a fixture)

pytestmark = pytest.mark.namespaces

PROGRAMS = TARGET.parent / "containerd"
needs_containerd = pytest.mark.skipif(not (PROGRAMS / "crictl").exists() or not shutil.which("runc"), reason="not built: ci/containerd")

# What it has beside its socket's directory is in a /run of its own. Tests may not lower the score of the OOM killer everywhere.
CONFIGURATION = """
version = 3
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{directory}/c.sock"
[ttrpc]
  address = "{directory}/t.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  pinned_images = {{ sandbox = "localhost/pause:1" }}
[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = ["{directory}/cdi"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{directory}/nri.sock"
  plugin_path = "{directory}/none"
  plugin_config_path = "{directory}/none"
"""
# As the restricted Pod Security standard has it. Network 2 is the engine's own namespace: there is no CNI here.
RESTRICTED = {
    "run_as_user": {"value": 65534}, "run_as_group": {"value": 65534}, "readonly_rootfs": True, "no_new_privs": True,
    "capabilities": {"drop_capabilities": ["ALL"]}, "seccomp": {"profile_type": 0}, "namespace_options": {"network": 2, "pid": 1},
}  # fmt: skip


class Containerd:
    """One of the test's own, with these images."""

    def __init__(self, world, images):
        self.world, self.directory, self.group = world, world.directory / "c", unique("shunpike-test-")
        (self.directory / "cdi").mkdir(parents=True)
        (self.directory / "config.toml").write_text(CONFIGURATION.format(directory=self.directory))
        world.cleanups.append(lambda: engines.remove_groups(self.group))
        path = {"PATH": f"{PROGRAMS}:{world.env['PATH']}"}
        start = 'mount -t tmpfs none /run && exec containerd --config "$0"'
        self.proc = world.start("containerd", [*engines.APART, "sh", "-c", start, self.directory / "config.toml"], env=path)
        until(lambda: self.run("ctr", "--address", self.directory / "c.sock", "version").returncode == 0, self.proc.describe)
        for image in images:
            options = ["--address", self.directory / "c.sock", "--namespace", "k8s.io"]
            loaded = self.run("ctr", *options, "images", "import", "--local", "--snapshotter", "native", image)
            assert loaded.returncode == 0, loaded.stderr

    def run(self, program, *arguments):
        return subprocess.run([PROGRAMS / program, *arguments], env=self.world.env, capture_output=True, text=True, timeout=60)

    def crictl(self, *arguments):
        ran = self.run("crictl", "--runtime-endpoint", f"unix://{self.directory}/c.sock", *arguments)
        assert ran.returncode == 0, ran.stderr + self.proc.describe()
        return ran.stdout.strip()

    def pod(self, name, command, environment, annotations, devices):
        """Starts a pod with one container; its number."""
        logs, linux = self.directory / name, {"cgroup_parent": f"/{self.group}", "security_context": RESTRICTED}
        logs.mkdir()
        container = {
            "metadata": {"name": name}, "image": {"image": "localhost/test:1"}, "command": [str(word) for word in command], "log_path": "log",
            "envs": [{"key": key, "value": value} for key, value in environment.items()], "CDI_devices": devices, "linux": linux,
        }  # fmt: skip
        pod = {"metadata": {"name": name, "namespace": "default", "uid": name}, "annotations": annotations, "log_directory": str(logs), "linux": linux}
        files = logs / "container.json", logs / "pod.json"
        for file, contents in zip(files, (container, pod), strict=True):
            file.write_text(json.dumps(contents))
        return self.crictl("run", "--no-pull", *files)

    def finish(self, number):
        """Waits for a container to end well."""
        status = lambda: json.loads(self.crictl("inspect", number))["status"]
        ended = until(lambda: (now := status())["state"] == "CONTAINER_EXITED" and now, lambda: f"the end of {status()}", seconds=60)
        assert ended["exitCode"] == 0, (ended, Path(ended["logPath"]).read_text())

    def stop(self):
        self.crictl("rmp", "--force", "--all")
        self.proc.signal(signal.SIGTERM)
        self.proc.finish()


def archive(world, root, name):
    target = world.directory / f"{name}.tar"
    subprocess.run([ROOT / "dist/packages/oci", root, f"localhost/{name}:1", "amd64", target], check=True)
    return target


@needs_root
@needs_containerd
def test_lanes_between_two_pods_under_the_restricted_standard(world, bed, installed):  # noqa: F811
    node = world.directory / "shunpike-node"
    by_go(ROOT / "dist/kubernetes/node", "build", "-o", node, ".")
    # A pod's own process, under the name that our images start.
    pause = world.directory / "pause/usr/local/bin/shunpike"
    pause.parent.mkdir(parents=True)
    subprocess.run(["cc", "-static", "-x", "c", "-o", pause, "-"], input="#include <unistd.h>\nint main(void) { return pause(); }", text=True, check=True)
    engines.image(world, bed / "pingpong")
    engine = Containerd(world, [archive(world, world.directory / "image", "test"), archive(world, world.directory / "pause", "pause")])

    accel, port = Accel(world, "both"), free_port()
    specification = engine.directory / "cdi/shunpike.json"
    assert generate(world, installed, "--output", specification, socket=accel.broker.socket).returncode == 0
    plugin = world.start("plugin", [node, "nri-plugin", "-nri", engine.directory / "nri.sock", "-cdi", specification])
    until(lambda: "Started plugin" in plugin.err, plugin.describe)
    # The broker's directory, as the pods see it.
    environment = {"BED_HOST": "127.0.0.1", "BED_WARM_UNTIL": "/run/shunpike/over"}
    dialogue = lambda role: ["/bin/pingpong", role, port, 1, 3000]
    server = engine.pod("server", dialogue("server"), environment, {"shunpike.dev/lane": "true"}, [])
    until(lambda: f":{port} " in subprocess.run(["ss", "-Hltn"], capture_output=True, text=True).stdout, "the server listens")
    client = engine.pod("client", dialogue("client"), environment, {}, [{"name": "shunpike.dev/lane=all"}])
    accel.verify(lanes=1, lane_bytes=1)
    # Whoever has a shell in a pod, or `kubectl exec`, sees what its programs have. The network is the node's, so the other pod's end is there as well.
    shown = engine.crictl("exec", "--sync", server, "/usr/local/bin/shunpike", "ss", "--no-header").splitlines()
    assert ["SMCD", "1", "pingpong"] in [line.split()[-3:] for line in shown], shown
    (world.directory / "over").touch()
    engine.finish(client)
    engine.finish(server)
    accel.verify(lanes=1, lane_bytes=100_000)
    assert "default/server/server gets the device" in plugin.err and "client" not in plugin.err
    engine.stop()
