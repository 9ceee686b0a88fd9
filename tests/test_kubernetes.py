"""What a node of Kubernetes gets: the image; its programs as the chart's pod runs them, here by podman; and the device plugin, with a kubelet
that its own tests play."""

import hashlib
import json
import re
import signal
import subprocess
import tarfile

import pytest

import engines
from harness import BINARY, ROOT, Stats
from netns import join, namespace, needs_root
from packages import by_go, by_make
from procs import finish_together, free_port, until

pytestmark = pytest.mark.namespaces

NODE = ROOT / "dist/kubernetes/node"
# As the chart has it for all but the broker, whose capabilities come on top.
NOTHING = ["--cap-drop=all", "--read-only", "--security-opt=no-new-privileges"]
BROKERS = ["--cap-add=bpf,net_admin,sys_admin"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    by_go(NODE, "build", "-o", "/dev/null", ".")
    return by_make("image", tmp_path_factory.mktemp("image"))


def test_the_programs_of_a_node_with_a_kubelet_that_comes_and_goes():
    by_go(NODE, "vet", "./...")
    assert by_go(NODE, "test", "./...").startswith("ok")


def contents(archive):
    """What an image of one layer says of itself, and the layer."""
    with tarfile.open(archive) as layout:
        read = lambda name: layout.extractfile(name).read()

        def blob(descriptor):
            found = read(f"blobs/{descriptor['digest'].replace(':', '/')}")
            assert hashlib.sha256(found).hexdigest() == descriptor["digest"].removeprefix("sha256:") and len(found) == descriptor["size"]
            return found

        (named,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(blob(named))
        (layer,) = manifest["layers"]
        (before_25,) = json.loads(read("manifest.json"))
        assert before_25["RepoTags"] == [named["annotations"]["org.opencontainers.image.ref.name"]]
        return before_25["RepoTags"][0], json.loads(blob(manifest["config"])), blob(layer)


def test_the_image_is_from_nothing_and_its_programs_are_static(archive, tmp_path):
    name, config, layer = contents(archive)
    version = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert name == f"localhost/shunpike:{version}" and config["config"]["Entrypoint"] == ["/usr/local/bin/shunpike"]
    (tmp_path / "layer").write_bytes(layer)
    with tarfile.open(tmp_path / "layer") as files:
        members = files.getmembers()
        files.extractall(tmp_path, filter="data")
    assert all(member.uid == member.gid == member.mtime == 0 and not member.mode & 0o022 for member in members)
    assert {member.name for member in members if member.isfile()} == {
        "etc/shunpike/broker.toml", "usr/local/bin/shunpike", "usr/local/bin/shunpike-node", "usr/local/lib/libshunpike.so",
        "usr/local/lib/shunpike/container.preload", "usr/local/lib/shunpike/copyright", "usr/local/lib/shunpike/libshunpike-entry.so",
    }  # fmt: skip
    for program in ("shunpike", "shunpike-node"):
        headers = subprocess.run(["readelf", "-l", tmp_path / "usr/local/bin" / program], capture_output=True, text=True, check=True).stdout
        assert "INTERP" not in headers, program


@needs_root
@engines.needs_podman
def test_lanes_by_what_the_image_puts_onto_a_node(world, bed, archive):
    """A container puts files and specification there, one is the broker, and two that have the device get a lane."""
    name, node = contents(archive)[0], world.directory / "node"
    for directory in ("run", "cdi", "opt"):
        (node / directory).mkdir(parents=True)
    specification, socket = node / "cdi/shunpike.json", node / "run/broker.sock"
    mounted = [f"--volume={node / directory}:{node / directory}" for directory in ("cdi", "opt")]
    install = ["--entrypoint=/usr/local/bin/shunpike-node", name, "install", "-to", node / "opt", "-cdi", specification, "-socket", socket]
    engines.podman(world, "install", archive, None, *NOTHING, *mounted, *install, change=None).finish(seconds=60)
    given = json.loads(specification.read_text())["devices"][0]["containerEdits"]["mounts"]
    assert {mount["hostPath"] for mount in given} == {
        str(node / part)
        for part in ("run", "opt/bin/shunpike", "opt/lib/libshunpike.so", "opt/lib/shunpike/libshunpike-entry.so", "opt/lib/shunpike/container.preload")
    }

    broker = engines.podman(world, "broker", archive, None, *NOTHING, *BROKERS, f"--volume={node}/run:/run/shunpike", name, change=None)
    ask = lambda *what: subprocess.run([BINARY, *what, "--json"], env=world.env | {"SHUNPIKE_SOCKET": str(socket)}, capture_output=True, text=True)
    until(lambda: ask("info").returncode == 0, broker.describe, seconds=60)
    assert json.loads(ask("info").stdout)["privileged"]

    image = engines.image(world, bed / "pingpong")
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.9")

    def container(role, netns):
        options = [f"--env=BED_HOST={address}", "--env=BED_WARM_MS=300", "--device=shunpike.dev/lane=all", "--user=65534", *NOTHING]
        return engines.podman(world, role, image, specification, *options, "shunpike-test", "/bin/pingpong", role, port, 1, 3000, netns=netns)

    server = container("server", left).wait_listening(port, seconds=60)
    finish_together(server, container("client", right), seconds=60)
    stats = lambda: Stats.parse(ask("stats").stdout)
    until(lambda: stats().lanes >= 1 and stats().tx_bytes >= 100_000, lambda: f"a lane; have {stats()}")
    broker.signal(signal.SIGTERM)
    broker.finish()


@needs_root
@engines.needs_docker
def test_docker_loads_the_image_and_starts_the_broker_as_the_compose_file_does(world, archive):
    """Docker 20.10 knows neither an OCI layout nor CAP_BPF."""
    engines.need_dockerd()
    (world.directory / "shared").mkdir()
    compose = (ROOT / "dist/compose/compose.yaml").read_text()
    (added,) = re.findall(r"cap_add: \[(.*)\]", compose)
    options = [*NOTHING, "--pid=host", *(f"--cap-add={name}" for name in added.split(", ")), f"--volume={world.directory}/shared:/run/shunpike"]
    broker = engines.docker(world, "broker", archive, *options, contents(archive)[0], change=None)
    environment = world.env | {"SHUNPIKE_SOCKET": str(world.directory / "shared/broker.sock")}
    ask = lambda: subprocess.run([BINARY, "info", "--json"], env=environment, capture_output=True, text=True)
    until(lambda: ask().returncode == 0, broker.describe, seconds=60)
    assert json.loads(ask().stdout)["privileged"]
    broker.signal(signal.SIGTERM)
    broker.finish()
