"""The world is the same for the same seed, its promises stand in the documents, and they hold."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.installed import PYTHON
from tests.world.oracles import ORACLES, Oracle
from tests.world.past import PastFault
from tests.world.past.faults import PAST
from tests.world.plan import draw_plan, read_plan
from tests.world.promises import DOCUMENTS, WITHOUT_ORACLE, promising
from tests.world.schedule import Schedule, StandingStill
from tests.world.wire import FILES_PORT, Listener, MemoryNetwork, MemoryPort, Peer
from tests.world.world import run_plan

#: Twisted gives certificates to OpenSSL so.
pytestmark = pytest.mark.filterwarnings("ignore:Passing pyOpenSSL:DeprecationWarning")

ROOT = Path(__file__).parent.parent.parent
#: Worlds that broke a promise once: `python -m tests.world --seed K --shrink --keep FILE`.
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


#: Prints the history's digest of each of these seeds.
DIGESTS = """
import sys
from tests.world.plan import draw_plan
from tests.world.schedule import Schedule, StandingStill
from tests.world.world import run_plan
for seed in map(int, sys.argv[1:]):
    print(seed, run_plan(draw_plan(seed)).digest())
"""


@pytest.mark.parametrize("seed", [283, 26])
def test_the_same_seed_has_the_same_history(seed: int) -> None:
    one, other = (run_plan(draw_plan(seed), story=True) for _ in range(2))
    assert one.history == other.history
    assert one.digest() == other.digest()
    assert one.lives > 1
    assert not one.broken_promises


@pytest.mark.timeout(400)
def test_neither_hashes_nor_earlier_worlds_change_a_history() -> None:
    """348 has a download of four parts, under Fair; in 501 the operator looks six times.

    108 has two machines, of which one is lost. In 3598 a person asks for a secret of an
    authenticator, and the length of its picture is time on the line. 763 sends by multicast, a
    mirror follows a channel in 264. In 43 Apache stands before a gate. Clients
    of 49 speak TLS. 3 is small. Three other servers have the files of 18.
    """
    seeds = ["348", "501", "348", "3", "108", "26", "419", "3598", "763", "264", "43", "49", "18"]

    def digests(hash_seed: str, seeds: list[str]) -> list[str]:
        command = [PYTHON, "-c", DIGESTS, *seeds]
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return run.stdout.splitlines()

    found = digests("5", seeds)
    assert found[::-1] == digests("6", seeds[::-1])
    assert found[0] == found[2]


@pytest.mark.parametrize("oracle", ORACLES)
def test_each_oracle_holds_a_sentence_of_a_document(oracle: type[Oracle]) -> None:
    text = re.sub(r"\s+", " ", (ROOT / oracle.document).read_text("utf-8"))
    assert oracle.sentence
    assert oracle.sentence in text, "the document changed: change the oracle's sentence with it"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_promise_of_the_documents_has_an_oracle_or_a_reason(document: str) -> None:
    watched = [one.sentence for one in ORACLES if one.document == document]
    reasons = dict(WITHOUT_ORACLE[document])
    for sentence in promising(ROOT, document):
        if any(one in sentence or sentence in one for one in watched):
            continue
        found = next((start for start in reasons if sentence.startswith(start)), None)
        assert found is not None, f"write an oracle, or say what holds it: {sentence}"
        path, _, name = reasons.pop(found).partition("::")
        assert not name or f"def {name}(" in (ROOT / path).read_text("utf-8")
    assert not reasons, "these stand in the document no more"


@pytest.mark.parametrize("seed", [3, 26, 281])
def test_worlds_keep_their_promises(seed: int) -> None:
    assert run_plan(draw_plan(seed)).broken_promises == []


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_world_that_broke_a_promise_keeps_it_now(path: Path) -> None:
    assert run_plan(read_plan(path.read_text("utf-8"))).broken_promises == []


def test_a_loop_that_spins_is_a_find() -> None:
    """An epoll that tells of a socket again and again."""
    fault = ["--past", "socket-with-room-not-served", "--first", "1", "--seeds", "9"]
    run = subprocess.run(
        [PYTHON, "-m", "tests.world", *fault], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "TheLoopRests" in run.stdout, run.stdout + run.stderr


def test_a_world_whose_time_stands_still_ends() -> None:
    schedule = Schedule(random.Random(1))

    def again() -> None:
        schedule.after(0.0, again)

    again()
    with pytest.raises(StandingStill, match="again"):
        schedule.run(1.0, lambda: True)


def test_who_waits_to_be_accepted_leaves_no_socket_behind_a_listener_that_closes() -> None:
    """The request of an operator to a process that stopped then passed for a leak."""
    schedule, rng = Schedule(random.Random(1)), random.Random(1)
    network = MemoryNetwork(schedule, rng, rate_bytes_s=1e6, latency_s=0.01, buffer_bytes=32_000)
    port = MemoryPort(network, Listener(FILES_PORT))
    port.listen(1)
    heard: list[str] = []
    peer = SimpleNamespace(broken=lambda: heard.append("broken"))
    network.connect("198.18.0.1", cast(Peer, peer), 1e6, b"GET / HTTP/1.1")
    schedule.run(1.0, lambda: True)
    assert len(network.connections) == 1
    port.close()
    schedule.run(2.0, lambda: True)
    assert network.connections == []
    assert heard == ["broken"]


@pytest.mark.parametrize("fault", PAST, ids=lambda fault: fault.name)
def test_each_fault_of_the_past_is_a_change_of_today_s_code(fault: PastFault) -> None:
    path = ROOT / (fault.module.replace(".", "/") + ".py")
    changed = fault.change(path.read_text("utf-8"))
    compile(changed, str(path), "exec")
