"""The packages and the tarball: the Debian one installed, upgraded and removed in a root of its own, with nothing left."""

import os
import shutil
import subprocess
import tarfile

import pytest

from harness import ROOT, TARGET
from netns import needs_root
from packages import by_make as build
from procs import free_port, until

pytestmark = pytest.mark.operators


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return build("deb", tmp_path_factory.mktemp("deb"))


def field(package, name):
    return subprocess.run(["dpkg-deb", "--field", package, name], capture_output=True, text=True, check=True).stdout.strip()


def test_the_package_says_what_it_is(package):
    version = subprocess.run([TARGET / "shunpike", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert field(package, "Package") == "shunpike" and field(package, "Version") == version
    assert "libc6" in field(package, "Depends")
    assert int(field(package, "Installed-Size")) > 1000
    listing = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    assert all(row[1] == "root/root" for row in rows), listing
    assert all("w" not in row[0][4:] for row in rows if not row[0].startswith("l")), "nobody else's to write"


class Root:
    """A directory that dpkg takes for a system."""

    def __init__(self, directory):
        self.directory = directory
        for name in ("updates", "info", "triggers", "parts"):
            (directory / "var/lib/dpkg" / name).mkdir(parents=True)
        (directory / "var/lib/dpkg/status").touch()
        self.before = self.files()

    def files(self):
        inside = (path.relative_to(self.directory) for path in self.directory.rglob("*"))
        return {str(path) for path in inside if not str(path).startswith("var/")}

    def dpkg(self, *arguments):
        options = ["--force-script-chrootless", "--force-depends", f"--root={self.directory}", f"--log={self.directory}/var/log"]
        result = subprocess.run(["dpkg", *options, *arguments], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr


@needs_root
def test_it_is_installed_and_removed_and_leaves_nothing(world, package, tmp_path):
    root = Root(tmp_path)
    root.dpkg("--install", str(package))
    there = root.files() - root.before
    for wanted in (
        "usr/bin/shunpike", "usr/lib/libshunpike.so", "usr/lib/systemd/system/shunpike-broker.service", "etc/shunpike/broker.toml",
        "usr/share/man/man1/shunpike.1.gz", "usr/share/man/man1/shunpike-top.1.gz", "usr/share/bash-completion/completions/shunpike",
        "usr/share/zsh/vendor-completions/_shunpike", "usr/share/fish/vendor_completions.d/shunpike.fish",
        "usr/share/doc/shunpike/copyright", "usr/lib/shunpike/smc-tools/smcss",
        "usr/lib/shunpike/extcap/shunpike-extcap", "usr/share/man/man1/shunpike-tap.1.gz",
        "usr/share/doc/shunpike/docs/troubleshooting.md", "usr/share/doc/shunpike/dist/grafana/shunpike.json",
        "usr/share/doc/shunpike/dist/bpftrace/lanes.bt", "usr/lib/shunpike/container.preload",
        "usr/lib/shunpike/libshunpike-entry.so", "usr/lib/sysusers.d/shunpike.conf",
        "usr/lib/tmpfiles.d/shunpike.conf",
    ):  # fmt: skip
        assert wanted in there, f"{wanted} in {sorted(there)}"

    env = {key: value for key, value in world.env.items() if key != "SHUNPIKE_LIB"}
    run = lambda *argv: subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    broker = world.start("broker", [tmp_path / "usr/bin/shunpike", "broker", "--socket", world.directory / "b.sock",
                                    "--config", tmp_path / "etc/shunpike/broker.toml"])  # fmt: skip
    env["SHUNPIKE_SOCKET"] = str(world.directory / "b.sock")
    until(lambda: run(tmp_path / "usr/lib/shunpike/smc-tools/smcd", "info").returncode == 0, broker.describe)
    assert "interface {value=shunpike}" in run(tmp_path / "usr/lib/shunpike/extcap/shunpike-extcap", "--extcap-interfaces").stdout
    ran = run(tmp_path / "usr/bin/shunpike", "run", "printenv", "LD_PRELOAD")
    assert ran.stdout.strip() == str(tmp_path / "usr/lib/libshunpike.so"), ran.stderr
    broker.stop()
    unit = (tmp_path / "usr/lib/systemd/system/shunpike-broker.service").read_text()
    assert "ExecStart=/usr/bin/shunpike broker" in unit

    mine = tmp_path / "etc/shunpike/broker.toml"
    mine.write_text(mine.read_text() + "# mine\n")
    root.dpkg("--install", str(package))
    assert mine.read_text().endswith("# mine\n"), "what the operator wrote stays over an upgrade"
    root.dpkg("--remove", "shunpike")
    assert root.files() - root.before == {"etc", "etc/shunpike", "etc/shunpike/broker.toml"}, "and over a removal"
    root.dpkg("--purge", "shunpike")
    assert root.files() - root.before <= {"etc"}, root.files()


@needs_root
def test_programs_that_run_survive_an_upgrade_and_a_purge(world, bed, package, tmp_path):
    """Those that run have the library that they began with; lanes between it and the new one open as ever."""
    root = Root(tmp_path)
    root.dpkg("--install", str(package))
    broker, port, rounds = world.broker(), free_port(), 10**7
    world.env.pop("SHUNPIKE_LIB", None)
    world.env["SHUNPIKE_SOCKET"] = str(broker.socket)
    run = lambda name, *argv: world.start(name, [tmp_path / "usr/bin/shunpike", "run", "--eager", "--", bed / "pingpong", *argv])
    server = run("server", "server", port, 2, rounds).wait_listening(port)
    before = run("client", "client", port, 1, rounds)
    until(lambda: broker.stats().lanes >= 1, lambda: f"a lane; have {broker.stats()}")
    root.dpkg("--install", str(package))
    after = run("client", "client", port, 1, rounds)
    until(lambda: broker.stats().lanes >= 2, lambda: f"a lane of the new library; have {broker.stats()}")
    root.dpkg("--purge", "shunpike")
    moved = broker.stats().tx_bytes
    until(lambda: broker.stats().tx_bytes > moved, lambda: f"more than {moved} bytes by lanes; have {broker.stats()}")
    for proc in (before, after, server):
        assert proc.popen.poll() is None, proc.describe()
    # A server whose client is stopped may die of SIGPIPE, as on TCP.
    for proc in (before, after, server):
        proc.stop()


def test_the_rpm_holds_what_the_debian_package_holds(package, tmp_path):
    if not shutil.which("rpm") or not shutil.which("go"):
        pytest.skip("rpm and go are not installed (ci/deps)")
    rpm = build("rpm", tmp_path)  # the first time with Go's client, which fetches and compiles nfpm
    ask = lambda what: subprocess.run(["rpm", "--query", "--package", what, rpm], capture_output=True, text=True, check=True).stdout.split()
    contents = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    names = [line.split()[5].removeprefix(".") for line in contents.splitlines()]
    elsewhere = {"/usr/share/zsh/vendor-completions/_shunpike": "/usr/share/zsh/site-functions/_shunpike"}
    plain = {elsewhere.get(name, name.removesuffix(".gz")) for name in names if not name.endswith("/")}
    assert set(ask("--list")) == plain - {"/usr/share/doc/shunpike/changelog"}
    assert ask("--configfiles") == ["/etc/shunpike/broker.toml"] and ask("--requires")[0] == "glibc"


def test_the_apk_holds_it_too_but_what_needs_glibc_or_systemd(package, tmp_path):
    if not shutil.which("go"):
        pytest.skip("go is not installed (ci/deps)")
    with tarfile.open(build("apk", tmp_path), ignore_zeros=True) as parts:  # each part is an archive that has no end
        held = {member.name for member in parts.getmembers() if not member.isdir()}
        about = parts.extractfile(".PKGINFO").read().decode()
    assert {".PKGINFO", ".post-install", ".pre-deinstall"} <= held and "\ndepend" not in about
    contents = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    names = {line.split()[5].removeprefix("./") for line in contents.splitlines()}
    same = {name for name in names if not name.endswith("/") and name.startswith(("usr/bin", "usr/lib", "etc/"))}
    left_out = ("usr/lib/shunpike/shunpike-load", "usr/lib/systemd", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d")
    assert {name for name in held if name.startswith(("usr/bin", "usr/lib", "etc/"))} == {name for name in same if not name.startswith(left_out)}


@needs_root
def test_its_scripts_do_nothing_to_the_system_around_a_root(package, tmp_path):
    """Nor without systemd: a systemctl that was called would be seen."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        (tools / name).write_text(f"#!/bin/sh\necho called >>{tmp_path}/called\n")
        (tools / name).chmod(0o755)
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    for script, word in [("postinst", "configure"), ("prerm", "remove"), ("postrm", "purge")]:
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "DPKG_ROOT": str(tmp_path)}
        subprocess.run([tmp_path / "control" / script, word], env=env, check=True)
    assert not (tmp_path / "called").exists()


@needs_root
@pytest.mark.parametrize("script,words", [("postinst", ["configure", "0.1"]), ("prerm", ["remove"]), ("postrm", ["purge"])])
def test_a_systemctl_that_fails_fails_no_script(package, tmp_path, script, words):
    """In a mount namespace where systemd seems to run, with a systemctl that says no to all."""
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        (tools / name).write_text(f"#!/bin/sh\necho $1 >>{tmp_path}/called\nexit 1\n")
        (tools / name).chmod(0o755)
    setup = 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$@"'
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["unshare", "--mount", "sh", "-c", setup, "sh", tmp_path / "control" / script, *words], env=env, check=True)
    assert (tmp_path / "called").read_text(), "it was asked"


@needs_root
def test_its_removal_undoes_what_enable_has_done(package, tmp_path):
    """In a mount namespace whose /etc is the test's."""
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    etc, tools = tmp_path / "etc", tmp_path / "tools"
    drop_in = etc / "systemd/system/cache.service.d/90-shunpike.conf"
    drop_in.parent.mkdir(parents=True)
    tools.mkdir()
    (tools / "shunpike").symlink_to(TARGET / "shunpike")
    setup = f'mount --bind {etc} /etc && mount -t tmpfs none /run && exec "$@"'
    for script, word in [(tmp_path / "control/prerm", "remove"), (ROOT / "dist/packages/removing", "0")]:
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text("# Made by 'shunpike enable cache.service'\n[Service]\nEnvironment=\"LD_PRELOAD=/usr/lib/libshunpike.so\"\n")
        (etc / "ld.so.preload").write_text("/usr/lib/libshunpike.so\n")
        # The one of rpm names its command by its place, where none is here.
        text = script.read_text().replace("/usr/bin/shunpike disable", f"{tools}/shunpike disable")
        env = {"PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run(["unshare", "--mount", "sh", "-c", setup, "sh", "sh", "-c", text, "sh", word], env=env, check=True)
        assert not drop_in.exists() and not (etc / "ld.so.preload").exists(), script
    (etc / "shunpike").mkdir()
    for word, stays in [("remove", True), ("purge", False)]:
        (etc / "shunpike/enabled").touch()
        subprocess.run(["unshare", "--mount", "sh", "-c", setup, "sh", tmp_path / "control/postrm", word], check=True)
        assert (etc / "shunpike").exists() == stays, word


@needs_root
def test_make_uninstall_undoes_it_too_and_whatever_umask_installs_for_everybody(tmp_path):
    def make(target):
        argv = ["make", "-s", "-C", ROOT, target, f"DESTDIR={tmp_path}", "PREFIX=/usr", f"CARGO_TARGET_DIR={TARGET.parent}"]
        env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        ran = subprocess.run(argv, env=env, umask=0o077, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    make("install")
    installed = [path for path in (tmp_path / "usr").rglob("*") if not path.is_symlink()]
    assert len(installed) > 50 and not [path for path in installed if path.stat().st_mode & 0o044 != 0o044]
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/ld.so.preload").write_text("/a.so\n/usr/lib/libshunpike.so\n")
    make("uninstall")
    assert (tmp_path / "etc/ld.so.preload").read_text() == "/a.so\n"
    assert not [path for path in (tmp_path / "usr").rglob("*") if not path.is_dir()]


def test_the_tarball_works_where_it_is_unpacked(world, tmp_path):
    archive = build("tarball", tmp_path)
    with tarfile.open(archive) as files:
        assert all(member.uid == member.gid == 0 for member in files.getmembers())
        files.extractall(tmp_path / "anywhere", filter="data")
    (place,) = (tmp_path / "anywhere").iterdir()
    moved = shutil.move(place, tmp_path / "elsewhere")
    env = {key: value for key, value in world.env.items() if key != "SHUNPIKE_LIB"}
    env["SHUNPIKE_SOCKET"] = str(world.broker().socket)
    ran = subprocess.run([moved / "bin/shunpike", "run", "printenv", "LD_PRELOAD"], env=env, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == f"{moved}/lib/libshunpike.so", ran.stderr
    assert (moved / "README.md").exists() and (moved / "share/man/man1/shunpike-run.1").exists()
