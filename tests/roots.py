"""Roots of other systems, made of Debian's packages by apt: a libc, a shell and little else. They are kept beside the build."""

import os
import shutil
import subprocess
from pathlib import Path

from harness import TARGET, programs

KEPT = TARGET.parent / "roots"
SUITES = {"debian11": "bullseye", "debian12": "bookworm", "debian13": "trixie"}  # glibc 2.31, 2.36, 2.41
PACKAGES = ("libc6", "dash", "coreutils")
# The programs are linked against the oldest glibc: they run on all.
OLDEST, TO_LINK = "debian11", ("libc6-dev", "linux-libc-dev", "libcrypt-dev", "libnsl-dev", "libtirpc-dev")
MUSL = "/lib/ld-musl-x86_64.so.1"
# The compiler would take the start files and the libc of its own machine first.
OLD = ("--sysroot={root}", *(f"-{option}{{root}}/usr/lib/x86_64-linux-gnu" for option in "BL"))
# For each program of tests/programs/roots.c: the compiler's words, in a root of the oldest system where there is one.
KINDS = {
    "glibc": ("cc", *OLD),
    "threads": ("cc", *OLD, "-pthread", "-DTHREADED"),
    "static": ("cc", "-static"),
    "musl": ("musl-gcc",),
    "musl-threads": ("musl-gcc", "-pthread", "-DTHREADED"),
    "musl-static": ("musl-gcc", "-static"),
}


def repository():
    """Where this machine gets its own packages from."""
    form = ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(form, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split("|")[1] for line in lines if line.startswith("Debian|"))


def unpack(suite, packages, root, scratch):
    """Unpacks packages of a suite, without what they ask for; no script of theirs runs."""
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (scratch / name).mkdir(parents=True)
    (scratch / "sources.list").write_text(f"deb {repository()} {suite} main\n")
    (scratch / "status").touch()
    where = {"Dir::Etc::SourceList": "sources.list", "Dir::Etc::SourceParts": "none", "Dir::State::Lists": "lists",
             "Dir::Cache": "cache", "Dir::State::status": "status"}  # fmt: skip
    options = [f"-o{key}={scratch / name}" for key, name in where.items()]
    apt = ["apt-get", "-qq", "-oAPT::Sandbox::User=root", "-oAcquire::Languages=none", "-oAcquire::Retries=3", *options]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *packages], check=True, cwd=scratch / "debs")
    for package in (scratch / "debs").iterdir():
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)


def debian(name):
    """The root of a Debian: its libc, without libgcc_s, dash as /bin/sh, and coreutils; of the oldest one also what is linked with."""
    kept = KEPT / name
    if kept.is_dir():
        return kept
    making, scratch = KEPT / f"{name}.{os.getpid()}", KEPT / f"{name}.{os.getpid()}.apt"
    making.mkdir(parents=True)
    for directory in ("bin", "lib", "lib64", "sbin"):
        (making / "usr" / directory).mkdir(parents=True)
        if name != OLDEST:
            (making / directory).symlink_to(f"usr/{directory}")
    unpack(SUITES[name], [*PACKAGES, *(TO_LINK if name == OLDEST else ())], making, scratch)
    shutil.rmtree(scratch)
    if not (making / "bin/sh").exists():
        (making / "bin/sh").symlink_to("dash")
    for link in making.rglob("*"):  # those of the root, for the linker, which is outside
        if link.is_symlink() and (to := os.readlink(link)).startswith("/"):
            link.unlink(), link.symlink_to(os.path.relpath(f"{making}{to}", link.parent))
    made(making)
    making.rename(kept)
    return kept


def bare(name):
    """A root with nothing in it but places for what is mounted."""
    made(KEPT / name)
    return KEPT / name


def made(root):
    for directory in ("mnt", "proc", "t", "lib"):
        (root / directory).mkdir(parents=True, exist_ok=True)


def compile_kinds(target):
    """roots.c for each libc."""
    root, source = debian(OLDEST), programs() / "roots.c"
    for kind, (compiler, *flags) in KINDS.items():
        flags = [flag.format(root=root) for flag in flags]
        command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o", target / kind, source]
        subprocess.run(command, check=True)
    shutil.copy(Path(MUSL).resolve(), target / "ld-musl")
