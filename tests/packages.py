"""Programs of other projects, by the ordinary clients of the registries, kept beside our own so that they come once; and our own packages."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import ROOT, TARGET

MUSL = "x86_64-unknown-linux-musl"


def by_cargo(crate, program, flags="", target=None):
    """The `program` that tests/`crate` is, with its dependencies; `flags` for rustc; `target`: another than the machine's own."""
    directory = TARGET.parent / crate
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", ROOT / "tests" / crate / "Cargo.toml", "--target-dir", directory]
    if target:
        fetch(["rustup", "target", "add", target], "could not download", target)
        command += ["--target", target]
    fetch(command, "failed to download", crate, {"RUSTFLAGS": flags} if flags else {})
    return directory / (target or "") / "release" / program


# What Go's clients say where no proxy of modules is to be reached.
NO_MODULES = "dial tcp"


def go_program(program, source, *options, toolchain="", cgo=False, go="go", goroot=None):
    """Builds a Go program of our own, a file or a directory of them. `toolchain`: a version, which the client fetches; "": the installed one's."""
    env = {"GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": str(int(cgo))} | ({"GOROOT": str(goroot)} if goroot else {})
    where, what = (source, ".") if source.is_dir() else (source.parent, source.name)
    if toolchain:
        # Only for a module the client looks for another toolchain.
        env |= {"GO111MODULE": "on", "GOTOOLCHAIN": f"go{toolchain}"}
        where = shutil.copytree(where, program.with_suffix(".source"), ignore=lambda _, names: [name for name in names if what != "." and name != what])
        (where / "go.mod").write_text("module shunpike.test/own\n\ngo 1.19\n")
    fetch([go, "build", *options, "-o", program, what], NO_MODULES, f"Go {toolchain}", env, cwd=where)
    built = subprocess.run(["go", "version", program], capture_output=True, text=True, check=True).stdout
    assert f"go{toolchain}" in built, built
    return program


def modules_by_go(name, modules, *packages):
    """A directory with programs of other projects: these `packages` of `modules` (NAME@VERSION), by the name that the client gives them, and
    those whose sources are in tests/golang/`name`."""
    had = re.search(r"go1\.(\d+)", subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout)
    if had and int(had[1]) < 24:
        pytest.skip(f"{name} needs Go 1.24; this is {had[0]}")
    directory, own = TARGET.parent / "go" / name, ROOT / "tests" / "golang" / name
    shutil.rmtree(directory / "own", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    programs = [f"./own/{program.name}" for program in own.iterdir()] if own.exists() else []
    if programs:
        shutil.copytree(own, directory / "own")
    env = {"GO111MODULE": "on", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0", "GOBIN": str(directory / "bin")}
    if not (directory / "go.sum").exists():
        (directory / "go.mod").write_text(f"module shunpike.test/{name}\n\ngo 1.24\n")
        fetch(["go", "get", *modules], NO_MODULES, name, env, cwd=directory)
    fetch(["go", "install", *packages, *programs], NO_MODULES, name, env, cwd=directory)
    return directory / "bin"


def entry_library():
    """libshunpike-entry.so."""
    target = TARGET.parent / "entry"
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", ROOT / "crates" / "entry" / "Cargo.toml", "--target-dir", target]
    fetch(command, "failed to download", "the entry's dependencies")
    return target / "release" / "libshunpike_entry.so"


def by_make(target, directory):
    """The file that `make TARGET` makes of what is built, in the directory."""
    # The tests may themselves be run by make, which a make below it announces.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    result = subprocess.run(["make", target, f"OUT={directory}"], cwd=ROOT, capture_output=True, text=True,
                            env=env | {"CARGO_TARGET_DIR": str(TARGET.parent)}, timeout=900)  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return Path(result.stdout.splitlines()[-1])


def by_go(directory, *arguments):
    """Go's client in a module of ours; skips where the machine has none that is new enough, or cannot fetch what the module needs."""
    if not shutil.which("go"):
        pytest.skip("go is not installed (ci/deps)")
    ran = subprocess.run(["go", *arguments], cwd=directory, capture_output=True, text=True, timeout=900)
    for failure in ("requires go", "invalid go version", "toolchain not available", "dial tcp"):
        if ran.returncode and failure in ran.stderr:
            pytest.skip(f"Go's client cannot: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def by_npm(package, version, program):
    """The `program` that is in a package."""
    directory = TARGET.parent / "npm" / f"{package.replace('/', '-')}-{version}"
    found = directory / "node_modules" / package / program
    if not found.exists():
        options = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        fetch(["npm", "install", "--prefix", directory, *options, f"{package}@{version}"], "network", package)
    return found


def debian(program, *packages):
    """A `program` of Debian packages, which are not installed: of the first of them."""
    directory = TARGET.parent / packages[0]
    if not (directory / program).exists():
        directory.mkdir(parents=True, exist_ok=True)
        # What apt says of a package that is not in this release of Debian, too.
        fetch(["apt-get", "download", *packages], "E: ", packages[0], cwd=directory)
        for archive in directory.glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, "."], check=True, cwd=directory)
    return directory / program


def fetch(command, failure, what, env=None, cwd=None):
    """Runs a client. Where it fails and says `failure`, there is no registry to be reached: the test cannot run."""
    got = subprocess.run(command, capture_output=True, text=True, env=os.environ | (env or {}), cwd=cwd)
    if got.returncode and failure in got.stderr:
        pytest.skip(f"{what} cannot be had: {got.stderr[-300:]}")
    assert got.returncode == 0, got.stderr
