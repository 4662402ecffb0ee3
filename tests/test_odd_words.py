"""Words that nobody planned for are answered by a sentence, see `tests.odd_words`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.installed import PYTHON
from tidegate import commands
from tidegate.commands import cli

#: Seconds of search for words that nobody tried yet.
SECONDS = float(os.environ.get("ODD_WORDS_SECONDS", "10"))


def test_odd_words_are_answered_by_a_sentence(tmp_path: Path) -> None:
    program = [PYTHON, "-m", "tests.odd_words", "--seconds", f"{SECONDS}"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gate run . --slots http://[", "must be a whole number (it is 'http://***')"),
        ("gate check http://[", "'http://[' is no URL"),
        ("mirror admit . a http://[", "'http://[' is not the http(s) URL of a mirror."),
        ("mirror status . --state /dev/null", "state.json cannot be read: Not a directory"),
        ("simulate paper --come-back 1e20", "neither 'eta' nor seconds up to a day"),
        ("config check --config odd.toml", "slots (odd.toml): input should be a finite number"),
        ("config check --config odd2.toml", "workers (odd2.toml)"),
        (f"admin --url {NOBODY} tickets --search \udcff", "connection refused"),
    ],
)
def test_words_that_once_ended_in_a_traceback(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.toml").write_text("[admission]\nslots = 1e999\n")
    (tmp_path / "odd2.toml").write_text("workers = 1e999\n")
    monkeypatch.setenv("TIDEGATE_TRACEBACK", "1")
    found = CliRunner().invoke(cli, words.split(" "))
    assert found.exit_code != 0
    assert told in found.output, found.output


def test_a_fault_of_our_own_is_a_sentence_with_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(key: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(commands, "_load", fail)
    found = CliRunner().invoke(cli, ["plan"])
    assert found.exit_code == 70
    assert "Error: a fault in tidegate: ZeroDivisionError: a bug\n" in found.output
    monkeypatch.setenv("TIDEGATE_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(cli, ["plan"]).exception, ZeroDivisionError)
