"""Programs of other projects, by the ordinary clients of the registries; kept beside our own, so that they come once."""

import os
import subprocess

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
