"""Gives each command words that nobody planned for, and looks for what is no sentence.

    python -m tests.odd_words [--seconds 60] [--seed N]

Each case is a process forked from this one, which has loaded the server. It fails if it prints a
traceback, tells a fault of its own, is killed, or ends with a status that no document names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import tidegate
from tidegate.commands import cli
from tidegate.server.app.config import setting_names

#: What stands where a number, a size, a time, a name, an address, a path or a URL should.
ODD = (
    *("", "-1", "0", "1e999", "nan", "inf", "٣", "99999999999999999999", "0.0000001", "0x10"),
    *("abc", "a" * 3000, "\udcff", "\n", "=", "a=b", "*", "1,2", "40Mbit", "{}", "[1]", "null"),
    *("http://[", "http://[::1", "//[", "[::1", "::1", "127.0.0.1:99999", "unix:", "http://h:x/"),
    *("/nonexistent/x", "/dev/null", "/proc/self/mem", ".", ".."),
)
#: A command that runs for longer is ended: its words were taken.
LONGEST_S = 1
#: Of `get`, and 130 of Ctrl-C.
STATUSES = {*range(9), 130}
SETTINGS = list(setting_names())
#: What a command needs beside the odd word; of others a folder for each argument.
GIVEN = {
    "serve": "SITE --user root --listen 127.0.0.1:0 --state OWN/state",
    "gate run": "SITE --user root --listen 127.0.0.1:0 --state OWN/state",
    "plan": "SITE --visitors 20",
    "get": "http://127.0.0.1:1/x -o OWN/x",
    "gate check": "http://127.0.0.1:1/x",
    "mirror status": "http://127.0.0.1:1/",
}


#: Each setting is given one of these in a file, beside the odd words as texts.
ODD_TOML = ("-1", "0", "1e999", "nan", "true", "[]", "[1]", "['a', '']", "{}", "{a = 1}", "2**3")


@dataclass(frozen=True, slots=True)
class Case:
    words: tuple[str, ...]
    #: What stands in its configuration.
    config: str = ""

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else word[:9] + "…" for word in self.words)
        return repr(words + (f" with {self.config[:200]}" if self.config else ""))


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def command_of(path: tuple[str, ...]) -> click.Command:
    found: click.Command | None = cli
    for name in path:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None
    return found


def drawn(rng: random.Random, path: tuple[str, ...]) -> Case:
    """One or two odd words for this command, as options or in the place of its arguments."""
    command = command_of(path)
    options = [one for one in command.params if isinstance(one, click.Option)]
    places = [one for one in command.params if isinstance(one, click.Argument)]
    given = GIVEN.get(" ".join(path), " ".join("SITE" for one in places if one.required)).split()
    for option in options:
        if option.required:
            given += [option.opts[-1], "x"]
    words: list[str] = []
    for _ in range(rng.choice((1, 1, 2))):
        odd = rng.choice(ODD)
        option = rng.choice(options) if options else None
        if option is None or (places and rng.random() < 0.2):
            given = [odd, *given[1:]] if given and rng.random() < 0.7 else [*given, odd]
        else:
            words += [rng.choice(option.opts), *([] if option.is_flag else [odd])]
    return Case((*path, *given, *words))


def drawn_config(rng: random.Random) -> Case:
    """One or two settings with odd values in a file."""
    sections: dict[str, list[str]] = {}
    for name in rng.sample(SETTINGS, rng.choice((1, 1, 2))):
        section, _, key = name.rpartition(".")
        value = rng.choice((rng.choice(ODD_TOML), json.dumps(rng.choice(ODD))))
        sections.setdefault(section, []).append(f"{key} = {value}")
    text = "\n".join(
        "\n".join([f"[{section}]" if section else "", *lines])
        for section, lines in sorted(sections.items())
    )
    return Case(("config", rng.choice(("check", "show")), "--config", "OWN/odd.toml"), text)


def fault_of(case: Case, site: Path) -> str:
    """What is wrong with how this case ends; nothing if it is all right."""
    own = tempfile.mkdtemp(prefix="tidegate-odd-")
    printed = Path(own, "printed")
    Path(own, "odd.toml").write_text(case.config, errors="surrogateescape")
    words = [word.replace("SITE", str(site)).replace("OWN", own) for word in case.words]
    child = os.fork()
    if child == 0:
        _become(words, own, printed)
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    text = printed.read_text(errors="replace")
    shutil.rmtree(own, ignore_errors=True)
    status = os.waitstatus_to_exitcode(ended)
    if "Traceback" in text or status not in STATUSES | {-signal.SIGALRM}:
        return f"{case} ended with {status}:\n{text[-1500:]}"
    return ""


def _become(words: list[str], folder: str, printed: Path) -> None:
    """Run these words in this process, and end it."""
    os.setsid()
    os.chdir(folder)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, printed, os.O_CREAT | os.O_RDWR)):
        os.dup2(os.open(path, flags), number)
    os.dup2(1, 2)
    os.environ["HOME"] = os.environ["XDG_STATE_HOME"] = folder
    sys.argv[:] = ["tidegate", *words]
    signal.alarm(LONGEST_S)
    status = 99
    try:
        tidegate.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 — it is what this looks for
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    rng, until_s = random.Random(given.seed), time.monotonic() + given.seconds
    known, count, faults = list(commands()), 0, 0
    for path in known:
        command_of(path)
    with tempfile.TemporaryDirectory(prefix="tidegate-odd-site-") as name:
        site = Path(name)
        (site / "small.txt").write_text("small")
        (site / "large.iso").write_bytes(bytes(300_000))
        while time.monotonic() < until_s:
            count += 1
            odd = drawn(rng, rng.choice(known)) if rng.random() < 0.8 else drawn_config(rng)
            fault = fault_of(odd, site)
            if fault:
                faults += 1
                sys.stdout.write(fault + "\n")
    sys.stdout.write(f"Seed {given.seed}: {count} cases, {faults} faults\n")
    return int(faults > 0 or not count)


if __name__ == "__main__":
    sys.exit(main())
