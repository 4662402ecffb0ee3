"""How large each room is: lines and module constants, beside what it may have.

python -m tests.size
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Size:
    """Lines of Python, and constants of modules: names in capitals."""

    lines: int
    constants: int


#: What each room may have: its size of today and 2 to 3 % more. A change that makes a room smaller
#: lowers its budget, and one that raises a budget says why in its commit.
BUDGETS: Mapping[str, Size] = {
    "policies": Size(9_812, 92),
    "protocol": Size(4_659, 70),
    "server": Size(44_268, 331),
    "client": Size(14_301, 42),
    "loadtest": Size(6_889, 53),
    "bench": Size(4_580, 50),
}

#: What a file of the product is for: the longest beginning of its path decides.
FEATURES: Mapping[str, str] = {
    "a client that downloads": "client/ bench/parallel/",
    "policies": "policies/",
    "admin pages and API": "server/admin/ server/control/ client/admin/ "
    "server/app/admin_service.py",
    "multicast": "server/multicast/ client/multicast/ client/fetch/multicast_join.py protocol/fec "
    "protocol/session protocol/packet.py protocol/marks.py "
    "bench/multicast/ server/app/cli/multicast.py loadtest/hot_object.py",
    "mirror channels": "server/mirror/ client/mirror/ protocol/batch protocol/channel.py "
    "protocol/tree protocol/mirror_report.py protocol/compress.py protocol/disk/pieces.py "
    "protocol/disk/scan.py bench/mirror.py loadtest/mirror_fanout.py server/app/cli/mirror.py",
    "files": "server/files/",
    "HTTP": "server/http/",
    "admission": "server/admission/",
    "cluster and workers": "server/cluster/ server/store/cluster.py server/app/workers.py "
    "server/app/machine.py server/app/fleet.py server/app/meeting.py "
    "server/app/node_service.py server/app/shared.py",
    "simulator": "loadtest/sim/",
    "load test": "loadtest/ bench/staging.py",
    "gate": "server/gate/ server/app/cli/gate.py bench/gate.py",
    "other benches": "bench/",
    "store": "server/store/",
    "torrents and peers": "server/torrent/ client/peers/ client/fetch/peer_join.py",
    "accounts": "server/accounts/",
    "OIDC logins": "server/accounts/oidc server/admin/oidc_login.py",
    "RaptorQ": "protocol/fec_raptorq.py server/multicast/fec_choice.py",
    "settings and process": "server/ protocol/",
}


#: A constant begins its line, alone or in a tuple: `NAME = `, `NAME: int = `, `A, B = `.
_CONSTANTS = re.compile(r"(?m)^(_*[A-Z][A-Z0-9_]*(?:, _*[A-Z][A-Z0-9_]*)*)(?:: [^=\n]+)? =")


@functools.cache
def _texts() -> dict[str, str]:
    """Each file of the product that git knows."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    mine = [name for name in names if name.partition("/")[0] in BUDGETS and (ROOT / name).exists()]
    return {name: (ROOT / name).read_text("utf-8") for name in mine}


def measured() -> dict[str, Size]:
    """The size of each room, in the order of the budgets."""
    lines: Counter[str] = Counter()
    constants: Counter[str] = Counter()
    for name, text in _texts().items():
        room = name.partition("/")[0]
        lines[room] += text.count("\n")
        constants[room] += sum(len(found.split(",")) for found in _CONSTANTS.findall(text))
    return {room: Size(lines[room], constants[room]) for room in BUDGETS}


def by_feature() -> Counter[str]:
    """Lines of each feature."""
    begins = {begin: feature for feature, text in FEATURES.items() for begin in text.split(" ")}
    found: Counter[str] = Counter()
    for name, text in _texts().items():
        begin = max((one for one in begins if name.startswith(one)), key=len)
        found[begins[begin]] += text.count("\n")
    return found


def table() -> str:
    """Each room beside its budget, and what each feature takes."""
    rows = [f"{'room':<12}{'lines':>8}{'of':>8}{'constants':>12}{'of':>7}"]
    for room, size in measured().items():
        most = BUDGETS[room]
        rows.append(
            f"{room:<12}{size.lines:>8}{most.lines:>8}{size.constants:>12}{most.constants:>7}"
        )
    rows += ["", f"{'feature':<24}{'lines':>8}"]
    rows += [f"{feature:<24}{lines:>8}" for feature, lines in by_feature().most_common()]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
