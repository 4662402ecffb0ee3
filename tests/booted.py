"""A machine of its own with systemd as its first process, over a copy-on-write view of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.running import wait_for

_SYSTEMD = Path("/lib/systemd/systemd")
#: Mounts a copy-on-write view of the folders "$2" at "$1/root", and goes there. Nothing is synced.
MOUNT_VIEW = """
mkdir -p "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "volatile,lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
"""
#: All writes are in memory and end with the machine.
_BOOT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
{MOUNT_VIEW}
mount -t proc proc proc
mount -t cgroup2 cgroup2 sys/fs/cgroup
# systemd walks through what lies there, which took it 27 s on a machine that had run tests.
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs var/tmp
# Without a network apt can install only what is brought: reading all lists takes it 1 s each time.
mount -t tmpfs tmpfs var/lib/apt/lists
# The same for an index of this machine's manuals.
rm -f var/lib/man-db/auto-update
mkdir -p root/brought
mount --bind "$3" root/brought
ip link set lo up
pivot_root . mnt
umount -l /mnt
export container=test
exec /lib/systemd/systemd --unit=basic.target
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Runs commands there; what was brought along lies in /root/brought."""

    first: int

    def run(self, command: str, *, check: bool = True) -> str:
        """What a shell there says; in `/root/brought`, as root."""
        inside = ("nsenter", "-t", str(self.first), *["-m", "-p", "-n", "-u", "-i", "-C"])
        done = subprocess.run(
            [*inside, "sh", "-c", f"cd /root/brought; {command}"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout


def _hierarchy() -> Path | None:
    """Where this machine has the cgroups that systemd uses."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    return None


@contextmanager
def booted(scratch: Path, brought: Path) -> Iterator[Machine]:
    """Boots, and ends everything that was started there; skips where that cannot be had."""
    groups = _hierarchy()
    if os.geteuid() != 0 or groups is None or not _SYSTEMD.exists():
        pytest.skip("booting needs root, systemd and cgroups of version 2")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    group = groups / f"test-{os.getpid()}"
    group.mkdir()
    scratch.mkdir()
    apart = ["--mount", "--pid", "--fork", "--net", "--uts", "--ipc", "--cgroup", "--kill-child"]
    into = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
    words = ["sh", "-c", into, "sh", "unshare", *apart, "sh", "-c", _BOOT, "sh"]
    log = scratch.with_suffix(".log")
    with log.open("w") as out:
        outer = subprocess.Popen(
            [*words, str(scratch), "/", str(brought)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

        def up() -> bool:
            if outer.poll() is not None:
                pytest.skip(f"systemd does not boot here: {log.read_text()[-300:]}")
            first = children.read_text().split()
            if not first or Path(f"/proc/{first[0]}/exe").resolve().name != "systemd":
                return False
            machine = Machine(int(first[0]))
            return "running" in machine.run("systemctl is-system-running --wait", check=False)

        wait_for(up, 60)
        yield Machine(int(children.read_text().split()[0]))
    finally:
        outer.kill()
        outer.wait()
        wait_for(lambda: _emptied(group), 10)


def _emptied(group: Path) -> bool:
    """Removes the groups of what has ended."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True
