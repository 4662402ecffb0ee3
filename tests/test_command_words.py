"""What the command says of words that it does not know or cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate import cli


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["gte"], "gate or get"),
        (["gett"], "get"),
        (["sevre"], "serve"),
        (["mirror", "innit"], "init"),
    ],
)
def test_a_mistyped_command_is_guessed(words: list[str], meant: str) -> None:
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 2
    assert f"Did you mean {meant}?" in told.output


def test_a_command_like_no_other_is_not_guessed() -> None:
    assert "Did you mean" not in CliRunner().invoke(cli, ["zzzzz"]).output


def test_the_manual_has_no_escapes_in_its_text() -> None:
    manual = CliRunner().invoke(cli, ["manual"]).output
    assert "[DIR]" in manual
    assert "\\e&" not in manual


@pytest.mark.parametrize("flag", ["--multicast-interface", "--multicast-fec"])
def test_a_flag_of_multicast_without_multicast_is_refused(flag: str, tmp_path: Path) -> None:
    value = "127.0.0.1" if flag.endswith("interface") else "xor"
    told = CliRunner().invoke(cli, ["serve", str(tmp_path), flag, value])
    assert told.exit_code == 2
    assert f"{flag} has no effect without --multicast" in told.output
