"""Every `make` target and every `python -m …` that people are told to type: it begins as it stands.

Each command runs up to where its options are read, as it stands, so an option that was renamed is
found; and each program runs to its end in its smallest form, and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.policies.laws import LAWS
from tests.apart import ApartRun, run_apart
from tests.installed import PYTHON
from tests.test_docs import DOCUMENTS, ROOT

#: What stands for something of the reader's own, or may be left out.
_OPTIONAL = re.compile(r"\[([^][]*)\]")
_OWN = {"DIR": "somewhere", "FILE": "some.file", "TEXT": "exp2", "SEED": "1", "N": "2"}
#: The programs among the tests.
_OF_TESTS = r"tests\.(?:attacks\.adversary|machine_faults|profile_pictures)"
_OWN |= {"REVISION": "HEAD", "POLICY": "ticket", "WHO": "'one IPv4'", "...": "", "…": ""}
_OWN |= {"$${DIR:-staging}": "staging"}
#: Runs in one process: argparse and click read the options, and then nothing is done.
_CHILD = """
import argparse, importlib, json, pathlib, runpy, sys, traceback
import importlib.util
import click
class Read(BaseException):
    pass
taken = argparse.ArgumentParser.parse_args
def parse_args(self, *given, **named):
    taken(self, *given, **named)
    raise Read
def invoke(self, context):
    raise Read
argparse.ArgumentParser.parse_args = parse_args
click.Command.invoke = invoke
faults = []
for words in json.loads(sys.stdin.read()):
    sys.argv = list(words)
    try:
        reads = pathlib.Path(importlib.util.find_spec(words[0]).origin).read_text()
        if "ArgumentParser" not in reads and "@click" not in reads and len(words) == 1:
            importlib.import_module(words[0])
            continue
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        faults.append(f"{words}: reads no options")
    except Read:
        pass
    except SystemExit as end:
        if end.code not in (0, None):
            faults.append(f"{words}: {end.code}")
    except BaseException:
        faults.append(f"{words}: {traceback.format_exc(limit=-3)}")
print(json.dumps(faults))
"""


#: What each program runs as to its end, and what it says then. Exit status 1 is a bar that such a
#: short run misses, or a shared machine.
SMALLEST = {
    "tests.attacks.adversary --minutes 0.01 --seed 1 --rush 1": "always download: the bound",
    "bench.attacks.table --policy fair --attacker '16 people who always download' --days 1 "
    "--people 1 --no-simulated": "no attacker: ",
    "bench.gate --beside 1": "small.bin: ",
    "bench.gate --decisions 200": "200 decisions in",
    "bench.gate --waiting 20": "20 clients wait",
    "bench.http_peers --rounds 1 --seconds 1 --warm-up 0 --only '304 by'": "| Varied: 304 by tag |",
    "bench.mirror --folder PAIR --rounds 1": "| tidegate mirror |",
    "bench.parallel.lab --only '1 MiB' --runs 1 --tools tidegate": "| 1 MiB |",
    "bench.policies.lab --policy fair --trace mixed --told right --part 0.02": "| mixed | fair",
    "bench.policies.laws --law background --cell flash": "| background |",
    "bench.sensitivity --field most_fall --cell slow --seeds 1": "| most_fall | 4 |",
    "bench.multicast.lab --mib 0.25 --receivers 2 --loss 5 --rounds 1 --tools ours,tcp": "5 % |",
}
#: What other tests run to its end, and where.
ELSEWHERE = {
    "tests.machine_faults": "test_e2e_cluster",
    "bench.staging": "test_e2e_staging",
    "tests.profile_pictures": "test_loadtest_pictures",
    # The clients of the two labs of policies.
    "bench.policies.crowd": "test_docs_benches",
}
#: Those that are ended from outside, once they have so many network namespaces.
ENDED = {
    "bench.attacks.table --policy fair --no-simulated": 2,
    "bench.parallel.lab --only stall": 6,
    "bench.policies.lab": 2,
    "bench.multicast.lab": 10,
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def told(text: str) -> list[list[str]]:
    """Every `python -m` of ours in a text, its words without what may be left out and with it."""
    found = []
    text = re.sub(r"`[^`]*`", lambda quoted: quoted[0].replace("\n", " "), text)
    for line in re.findall(
        rf"python(?:3)? -m ((?:bench|{_OF_TESTS}|loadtest|tidegate)\b[^`\n]*)", text
    ):
        line = re.split(r";|\s{3,}| >| --(?:seconds|minutes) \$\$| &&", line.strip().rstrip(".:,"))[
            0
        ]
        without, whole = line, line
        while _OPTIONAL.search(whole):
            without, whole = _OPTIONAL.sub("", without), _OPTIONAL.sub(r"\1", whole)
        for form in (without, whole):
            form = form.replace("--workload NAME", "--workload exp2").replace("NAME", "fair")
            for own, ours in _OWN.items():
                form = re.sub(rf"(?<=\s){re.escape(own)}(?=\s|$)", ours, form)
            words = shlex.split(re.sub(r"(\w)\|\S+", r"\1", form).replace("...", ""))
            if words not in found:
                found.append(words)
    return found


def all_told() -> list[list[str]]:
    """The commands of the documents, of the modules themselves, and behind targets of make."""
    # The history names modules that have moved since.
    names = [name for name in DOCUMENTS if name != "CHANGELOG.md"]
    sources = [(ROOT / name).read_text("utf-8") for name in names]
    for module in (*ROOT.glob("bench/**/*.py"), *ROOT.glob("loadtest/*.py")):
        begin = module.read_text("utf-8").partition('"""')[2].partition('"""')[0]
        sources.append("\n".join(line for line in begin.splitlines() if line.startswith("    ")))
    sources.append((ROOT / "Makefile").read_text("utf-8").replace("$(BIN)/", ""))
    return [words for text in sources for words in told(text)]


@pytest.mark.e2e
def test_every_bench_that_is_told_of_reads_its_options() -> None:
    commands = {tuple(words) for words in all_told()}
    assert len(commands) > 30
    done = subprocess.run(
        [PYTHON, "-c", _CHILD],
        input=json.dumps(sorted(commands)),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_every_make_target_that_is_told_of_is_there(tmp_path: Path) -> None:
    told_of = {
        target
        for name in DOCUMENTS
        for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / name).read_text("utf-8"))
    }
    assert {"run", "test", "attacks", "bench-mirror", "lab-policies", "staging"} <= told_of
    done = subprocess.run(
        ["make", "-n", f"VENV={tmp_path}", *sorted(told_of)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("law", LAWS)
def test_each_law_of_the_table_can_be_switched_off(law: str) -> None:
    for owner, name, instead in LAWS[law]:
        with patch.object(owner, name, instead):
            assert getattr(owner, name) is instead


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[ApartRun]]]:
    """Those that are tested: they wait more than they compute, so a few go at a time."""
    chosen = {
        item.callspec.params.get("line")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    folder = tmp_path_factory.mktemp("pair")
    for name, inner in (("old", b""), ("new", b"new")):
        (folder / name / "package").mkdir(parents=True)
        (folder / name / "package" / "module.py").write_bytes(bytes(9000) + inner + bytes(9000))
    with ThreadPoolExecutor(3) as pool:
        found = {
            line: pool.submit(
                run_apart,
                [PYTHON, "-m", *shlex.split(line.replace("PAIR", str(folder)))],
                end_at=ENDED.get(line, 0),
            )
            for line in (*SMALLEST, *ENDED)
            if line in chosen
        }
        yield found
        pool.shutdown(cancel_futures=True)


@needs_root
@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", SMALLEST)
def test_in_its_smallest_form_it_runs_to_its_end(
    line: str, runs: dict[str, Future[ApartRun]]
) -> None:
    done = runs[line].result()
    assert SMALLEST[line] in done.said, done.said
    assert "Traceback" not in done.said, done.said
    assert done.code in (0, 1), done.said
    assert (done.programs, done.spaces) == ([], [])


@needs_root
@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", ENDED)
def test_ended_from_outside_it_leaves_nothing_behind(
    line: str, runs: dict[str, Future[ApartRun]]
) -> None:
    done = runs[line].result()
    assert "Traceback" not in done.said, done.said
    assert (done.code, done.programs, done.spaces) == (143, [], []), done.said


def test_every_program_that_is_told_of_has_a_smallest_form() -> None:
    run = [one.split()[0] for one in (*SMALLEST, *ELSEWHERE)]
    assert [words for words in all_told() if words[0] not in run] == []
    for name, where in ELSEWHERE.items():
        text = (ROOT / "tests" / f"{where}.py").read_text("utf-8")
        assert name in text or name.replace(".", " import ", 1) in text
