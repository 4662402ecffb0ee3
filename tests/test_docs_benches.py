"""Every `make` target and every `python -m …` that people are told to type: it begins as it stands.

Each command runs up to where its options are read, so a module that is gone, an import that fails
and an option that was renamed are found; what the runs do is tested beside what they measure.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import DOCUMENTS, ROOT

#: What stands for something of the reader's own, or may be left out.
_OPTIONAL = re.compile(r"\[([^][]*)\]")
_OWN = {"DIR": "somewhere", "FILE": "some.file", "TEXT": "exp2", "SEED": "1", "N": "2"}
_OWN |= {"REVISION": "HEAD", "POLICY": "ticket", "WHO": "'one IPv4'", "...": "", "…": ""}
_OWN |= {"$${DIR:-staging}": "staging", "$(STAGING)": ""}
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


def told(text: str) -> list[list[str]]:
    """Every `python -m` of ours in a text, its words without what may be left out and with it."""
    found = []
    text = re.sub(r"`[^`]*`", lambda quoted: quoted[0].replace("\n", " "), text)
    for line in re.findall(r"python(?:3)? -m ((?:bench|loadtest|tidegate)\b[^`\n]*)", text):
        line = re.split(r";|\s{3,}| >| --seconds \$\$| &&", line.strip().rstrip(".:,"))[0]
        without, whole = line, line
        while _OPTIONAL.search(whole):
            without, whole = _OPTIONAL.sub("", without), _OPTIONAL.sub(r"\1", whole)
        for form in (without, whole):
            form = form.replace("--workload NAME", "--workload exp2").replace("NAME", "fair")
            form = form.replace("--only fair", "--only curl") if "clients" in form else form
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
    assert len(commands) > 40
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(sorted(commands)),
        cwd=ROOT,
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
