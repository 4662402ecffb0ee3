"""What an attacker tries who runs code in the server. Its text runs there, at SIGUSR2.

The server's environment has the targets as JSON in INTRUDER. What became of each try stands in
`found.json` in the state folder afterwards: "refused" or "done".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: EXDEV: what Landlock says of a link into another folder.
REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EXDEV}
LIBC = ctypes.CDLL(None, use_errno=True)
#: bpf(2), keyctl(2), mount(2), unshare(2), process_vm_readv(2).
NUMBERS = {
    "x86_64": (321, 250, 165, 272, 310),
    "aarch64": (280, 219, 40, 97, 270),
}
BPF, KEYCTL, MOUNT, UNSHARE, READ_MEMORY = NUMBERS[os.uname().machine]
NEW_USER_NAMESPACE = 0x10000000
MPTCP = 262
SET_ATTRIBUTES = 0x40086602


def call(number: int, *arguments: object) -> None:
    if LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused or wrong")


def connect(family: int, place: Any, protocol: int = 0, fast_open: bool = False) -> None:
    with socket.socket(family, socket.SOCK_STREAM, protocol) as one:
        one.settimeout(5)
        if fast_open:
            one.sendto(b"x", socket.MSG_FASTOPEN, place)
        else:
            one.connect(place)


def send_datagram(place: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", place)


def bind(port: int) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))


def listen() -> None:
    with socket.socket() as one:
        one.listen()


def attribute(path: Path) -> None:
    with path.open("rb") as file:
        fcntl.ioctl(file.fileno(), SET_ATTRIBUTES, b"\0" * 8)


def python(code: str) -> None:
    subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True)


def tries(at: dict[str, Any]) -> dict[str, list[Callable[[], object]]]:
    """Each row of the table in docs/security.md, and all ways to do it."""
    tree, state, other = Path(at["tree"]), Path(at["state"]), Path(at["other"])
    file = tree / "a.txt"
    tcp = ("127.0.0.1", at["tcp"])
    return {
        "change, add, rename or remove a file of the release": [
            lambda: file.open("r+b").close(),
            lambda: os.truncate(file, 1),
            lambda: (tree / "new").write_text("x"),
            lambda: (tree / "link").symlink_to("a.txt"),
            lambda: os.link(file, state / "link"),
            lambda: file.rename(state / "a.txt"),
            lambda: file.unlink(),
        ],
        "its mode, owner, times or attributes": [
            lambda: file.chmod(0o600),
            lambda: os.chown(file, os.getuid(), os.getgid()),
            lambda: os.utime(file, (1, 1)),
            lambda: os.setxattr(file, "user.x", b"x"),
            lambda: attribute(file),
        ],
        "write anywhere else": [
            lambda: (other / "new").write_text("x"),
            lambda: open("/dev/zero", "wb").close(),
        ],
        "start another program": [lambda: subprocess.run(["/bin/true"], check=True)],
        "start Python": [lambda: python("pass")],
        "signal another process, or read its memory": [
            lambda: os.kill(at["pid"], signal.SIGCONT),
            lambda: call(READ_MEMORY, at["pid"], None, 0, None, 0, 0),
        ],
        "connect to a unix socket of another service": [
            lambda: connect(socket.AF_UNIX, str(other / "socket"))
        ],
        "connect to an abstract unix socket": [
            lambda: connect(socket.AF_UNIX, "\0" + at["abstract"])
        ],
        "connect by TCP": [
            lambda: connect(socket.AF_INET, tcp),
            lambda: connect(socket.AF_INET, tcp, fast_open=True),
            lambda: connect(socket.AF_INET, tcp, MPTCP),
        ],
        "listen at a chosen TCP port": [lambda: bind(at["free"])],
        "listen at a TCP port that the kernel chooses": [listen],
        "send datagrams (UDP)": [lambda: send_datagram(tcp)],
        "mount, make namespaces, load programs into the kernel, use its keys": [
            lambda: call(MOUNT, None, b"/", b"none", 0, None),
            lambda: call(UNSHARE, NEW_USER_NAMESPACE),
            lambda: call(BPF, 9999, None, 0),
            lambda: call(KEYCTL, 9999, 0, 0, 0, 0),
        ],
        "read what only root can read": [lambda: Path("/etc/shadow").read_bytes()],
        "read the release, hidden files too": [lambda: file.read_bytes()],
        "read and write the state: keys, queue, accounts": [
            lambda: (state / "keys.json").read_bytes(),
            lambda: (state / "own").write_text("x"),
        ],
    }


def outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as fault:
        return "refused" if fault.errno in REFUSED else "done"
    except subprocess.CalledProcessError:
        return "refused"
    return "done"


def intrude() -> None:
    at = json.loads(os.environ["INTRUDER"])
    found = {row: [outcome(act) for act in ways] for row, ways in tries(at).items()}
    whole = Path(at["state"]) / "found.new"
    whole.write_text(json.dumps(found))
    whole.rename(whole.with_name("found.json"))


def wait_for_signal() -> None:
    def heard(*_: object) -> None:
        from twisted.internet import reactor

        # After all that the server does when its reactor begins to run.
        reactor.callFromThread(intrude)  # type: ignore[attr-defined]

    signal.signal(signal.SIGUSR2, heard)
