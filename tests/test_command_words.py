"""What the command says of words that it does not know or cannot use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.installed import PYTHON
from tidegate.commands import cli


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


#: Runs the words after the first, which is the module at whose import Ctrl-C comes, or "end".
INTERRUPTED = """
import atexit, signal, sys, tidegate
module = sys.argv.pop(1)
def interrupt(event, about):
    if event == "import" and about[0] == module:
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(interrupt)
if module == "end":
    atexit.register(signal.raise_signal, signal.SIGINT)
tidegate.main()
"""


@pytest.mark.parametrize(
    ("module", "words", "status"),
    [
        ("click", "--help", 130),
        ("tidegate.client.net.errors", "get http://127.0.0.1:1/x", 130),
        ("tidegate.client.admin.api", "admin status", 130),
        ("tidegate.server.store.store", "serve /tmp --user root", 130),
        ("end", "--version", -2),
    ],
)
def test_a_command_that_is_interrupted_while_it_loads_or_ends_says_nothing(
    module: str, words: str, status: int, tmp_path: Path
) -> None:
    command = [PYTHON, "-c", INTERRUPTED, module, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")


NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("get", "Name at least one URL"),
        ("get ftp://x/y", "'ftp://x/y' is not an http or https URL"),
        ("get a.example/x", "not an http or https URL; write it like https://a.example/x"),
        ("get http://", "'http://' names no host"),
        ("get /a/x", "tidegate: '/a/x' is not an http or https URL"),
        ("get http://[::1/x", "an IPv6 address stands in brackets"),
        ("get http://::1:80/x", "an IPv6 address stands in brackets"),
        ("get http://x:99999/y", "is not a URL: a port is a number up to 65535"),
        ("get http://x:0/y", "names port 0"),
        ("get file", "'file' is not an http or https URL"),
        ("get http://x/y -o no/folder/y", "cannot write no/folder/y: the folder does not exist"),
        ("get http://x/y -o file/y", "cannot write file/y: a file has the name of its folder"),
        ("get http://x/y --checksum sha256:zz", "is no digest; write it like sha256:HEX"),
        ("get http://x/y --ca none", "File 'none' does not exist"),
        ("get http://x/y -H bad", "'bad' is no header; write NAME: VALUE"),
        ("get http://x/y --connections 0", "0 is not in the range 1<=x<=16"),
        ("loadtest steady", "Missing option '--host'"),
        (f"loadtest nobody --host {NOBODY}", "no profile 'nobody'; there are browser"),
        (f"loadtest steady --host {NOBODY}", f"{NOBODY} does not answer"),
        ("loadtest steady --host x", "is not an http or https URL"),
        (f"loadtest steady --host {NOBODY} --trace raw", "raw is no text with one JSON object"),
        (f"loadtest steady --host {NOBODY} --trace file", "line 1 of the trace is not an arrival"),
        (f"loadtest steady --host {NOBODY} --release folder", "--release needs --visitors N"),
        ("simulate run --policy nobody", "'nobody' is not one of"),
        ("simulate run --policy fair", "give either --workload or --trace"),
        ("simulate run --policy fair --trace file", "--trace needs --rate"),
        ("simulate run --policy fair --workload none", "no workload 'none'; there are exp1"),
        ("simulate run --slots 0", "0 is not in the range"),
        ("plan none", "Directory 'none' does not exist"),
        ("plan file", "Directory 'file' is a file"),
        ("plan folder --bandwidth 1 --visitors 9", "'1' has no unit: write 1Mbit"),
        ("plan folder --bandwidth 0Mbit", "--bandwidth and --within must be above 0"),
        ("plan folder --bandwidth 1Mbit --visitors 9", "no file of the folder has content"),
        ("mirror follow x folder --channel c", "'x' is not an http or https URL"),
        (f"mirror follow {NOBODY} folder", "Missing option '--channel'"),
        ("mirror status none", "none mirrors nothing yet"),
        ("mirror init file", "Directory 'file' is a file"),
        ("multicast send none --directory folder", "there is no file none below"),
        ("multicast send file --at noon", "'noon' is no time; write 18:00"),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("raw").write_bytes(b"\xff\xfe\x00")
    Path("folder").mkdir()
    result = CliRunner().invoke(cli, words.split())
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code != 0
    assert told in " ".join(result.output.split())
