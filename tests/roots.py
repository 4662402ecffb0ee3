"""Roots of Debian releases. mmdebstrap makes them once; tests change copy-on-write views of them.

A process in a view sees only the files of that Debian. Needs root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from tests.booted import MOUNT_VIEW

ROOT = Path(__file__).resolve().parent.parent
#: Each release for which there is a Debian package, and its Python.
RELEASES = {"bookworm": "3.11", "trixie": "3.13"}
PACKAGES = ("usr-is-merged", "python3", "python3-venv", "systemd-standalone-sysusers")
#: Debian renews stable releases every two months.
MAX_AGE_S = 14 * 24 * 3600.0
#: Every checkout of this user, and so each run of CI on this machine, has the same roots.
_ROOTS = user_cache_path("tidegate-tests") / "roots"
#: Without these hooks a bookworm root needs Perl to merge /usr.
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
#: The options of apt that say how this machine reaches its mirror.
_APT_OPTIONS = ("Acquire::http::", "Acquire::https::", "Acquire::Check-")
#: How programs of this machine reach the network; a view gets the same.
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
_NETWORK_VARIABLES = ("PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")
_ENTER = f"""
set -e
mount --make-rprivate /
[ "$3" = host ] || ip link set lo up
{MOUNT_VIEW}
mount --rbind /proc proc
exec chroot . sh -c "echo entered; exec sleep infinity"
"""


def _mirror() -> str:
    """The mirror of Debian that this machine's apt uses."""
    which = ("Created-By: Packages", "Label: Debian")
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", *which],
        capture_output=True,
        text=True,
        check=True,
    )
    return next(iter(told.stdout.split()), "http://deb.debian.org/debian")


def _apt_options() -> Iterator[str]:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    yield 'Acquire::Languages "none";'
    yield 'APT::Install-Recommends "false";'
    for line in dump.stdout.splitlines():
        if line.startswith(_APT_OPTIONS):
            yield line


def debian(release: str) -> Path:
    """The folder with this release, which nobody may change. Takes about 20 s the first time."""

    def make(folder: Path) -> None:
        words = ["mmdebstrap", "--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io"]
        words += [f"--aptopt={line}" for line in _apt_options()]
        words += [f"--hook-dir={_MERGED_USR}", f"--include={','.join(PACKAGES)}"]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*words, release, folder, _mirror()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    return _made_once(release, PACKAGES, make)


def kept(
    name: str, made_of: Sequence[object], below: Sequence[Path], make: Callable[[Path], None]
) -> Path:
    """The layer that `make` leaves in `upper` of a folder, where nobody may change it.

    It is of an earlier run if what it is made of, and the layers below, have not changed.
    """
    lower = [(layer, layer.stat().st_mtime_ns) for layer in below]
    return _made_once(f"layer-{name}", (*made_of, *lower), make) / "upper"


def _made_once(name: str, made_of: Sequence[object], make: Callable[[Path], None]) -> Path:
    """A folder that is made anew after `MAX_AGE_S`, and for anything else that it is made of."""
    _ROOTS.mkdir(parents=True, exist_ok=True)
    made = _ROOTS / f"{name}-{hashlib.sha256(repr(tuple(made_of)).encode()).hexdigest()[:8]}"
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = made.with_suffix(".made")
        if stamp.exists() and time.time() - stamp.stat().st_mtime < MAX_AGE_S:
            return made
        for old in _ROOTS.glob(f"{name}-*.made"):
            if time.time() - old.stat().st_mtime >= MAX_AGE_S:
                shutil.rmtree(old.with_suffix(""), ignore_errors=True)
                old.unlink()
        shutil.rmtree(made, ignore_errors=True)
        make(made)
        stamp.touch()
    return made


@dataclass(frozen=True, slots=True)
class View:
    """A root that is entered; `changes` has the files that differ from what it was made of."""

    holder: int
    changes: Path
    has_own_network: bool

    def words(
        self,
        *command: str,
        user: str = "root",
        folder: str = "/",
        environ: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command that runs `command` in here. It keeps its process number."""
        enter = ["nsenter", f"--target={self.holder}", "--mount", "--root"]
        if self.has_own_network:
            enter.append("--net")
        variables = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        variables["HOME"] = "/root" if user == "root" else "/tmp"
        variables |= {name: os.environ[name] for name in _NETWORK_VARIABLES if name in os.environ}
        variables |= environ or {}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        become = []
        if user != "root":
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
            become += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        return [*enter, "env", "-i", f"--chdir={folder}", *pairs, *become, *command]

    def run(self, *command: str, check: bool = True, **how: str | Mapping[str, str]) -> str:
        """What a command prints, errors included. `how` is that of `words`."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            self.words(*command, **how),  # type: ignore[arg-type]
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}"
        return done.stdout

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a whole folder of this machine."""
        if source.is_dir():
            self.run("mkdir", "-p", target)
            with subprocess.Popen(
                ["tar", "-C", source, "-c", "."], stdout=subprocess.PIPE
            ) as packed:
                subprocess.run(
                    self.words("tar", "-C", target, "-xp", "--no-same-owner"),
                    stdin=packed.stdout,
                    check=True,
                )
            assert packed.returncode == 0
        else:
            with source.open("rb") as body:
                subprocess.run(self.words("sh", "-c", 'cat > "$0"', target), stdin=body, check=True)

    def changed_files(self) -> set[str]:
        """Paths of files that were written or removed, without those that `entered` wrote."""
        found = {
            f"/{path.relative_to(self.changes)}"
            for path in self.changes.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        return found - set(_network_files())


def _network_files() -> list[str]:
    named = (*_NETWORK_FILES, os.environ.get("PIP_CERT", ""))
    return [name for name in named if name and Path(name).is_file()]


@contextmanager
def entered(scratch: Path, *layers: Path, own_network: bool = False) -> Iterator[View]:
    """A view of `layers`, the uppermost first. `scratch/upper` is then one more layer.

    Ends all processes of the view.
    """
    assert os.geteuid() == 0, "a view of a root needs root"
    scratch.mkdir(parents=True)
    network = "own" if own_network else "host"
    apart = ["--mount", "--net"] if own_network else ["--mount"]
    below = ":".join(map(str, layers))
    holder = subprocess.Popen(
        ["unshare", *apart, "sh", "-c", _ENTER, "sh", str(scratch), below, network],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"entered\n", f"{below} cannot be mounted"
        view = View(holder.pid, scratch / "upper", own_network)
        for name in _network_files():
            view.run("mkdir", "-p", str(Path(name).parent))
            view.put(Path(name), name)
        yield view
    finally:
        for process in _processes(holder.pid):
            os.kill(process, 9)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def _processes(holder: int) -> list[int]:
    """All processes in the mount namespace of this one."""
    found: list[int] = []
    try:
        space = os.readlink(f"/proc/{holder}/ns/mnt")
    except OSError:
        return found
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/mnt") == space:
                found.append(int(name))
        except OSError:
            continue
    return found
