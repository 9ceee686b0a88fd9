"""Programs of other projects, by the ordinary clients of the registries, kept beside our own so that they come once; and our own packages."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import ROOT, TARGET


def by_cargo(crate, program, flags=""):
    """The `program` that tests/`crate` is, with its dependencies; `flags` for rustc."""
    target = TARGET.parent / crate
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", ROOT / "tests" / crate / "Cargo.toml", "--target-dir", target]
    fetch(command, "failed to download", crate, {"RUSTFLAGS": flags} if flags else {})
    return target / "release" / program


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


def fetch(command, failure, what, env=None):
    """Runs a client. Where it fails and says `failure`, there is no registry to be reached: the test cannot run."""
    got = subprocess.run(command, capture_output=True, text=True, env=os.environ | (env or {}))
    if got.returncode and failure in got.stderr:
        pytest.skip(f"{what} cannot be had: {got.stderr[-300:]}")
    assert got.returncode == 0, got.stderr
