"""A shell completes the commands and their options; the manual page names all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.installed import TIDEGATE
from tidegate.client.cli.completion import manual_page
from tidegate.client.cli.get import get
from tidegate.commands import COMMANDS, cli

ROOT = Path(__file__).parent.parent


def tidegate(*words: str, **environ: str) -> str:
    command = [TIDEGATE, *words]
    env = {**os.environ, **environ}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = tidegate("completion", shell)
    assert "_TIDEGATE_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "wanted"), [("tidegate g", "get"), ("tidegate get --che", "--checksum")]
)
def test_words_are_completed(words: str, wanted: str) -> None:
    found = tidegate(
        _TIDEGATE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))
    )
    assert wanted in found


def test_the_manual_page_has_every_command_and_option() -> None:
    page = manual_page(cli, "tidegate")
    plain = page.replace("\\-", "-")
    for words in COMMANDS:
        assert f"tidegate {words}" in plain
    for parameter in get.params:
        for option in parameter.opts:
            if option.startswith("-"):
                assert option in plain
    requests = {line.split(" ")[0] for line in page.splitlines() if line.startswith(".")}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".PP"}
