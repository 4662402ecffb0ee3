"""`tidegate multicast send`: when, what, and the entry the server finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.commands import cli
from tidegate.protocol.errors import ProtocolError
from tidegate.server.app.cli.multicast import parse_when, url_path
from tidegate.server.multicast.schedule import FOLDER, read_entry

NOW = datetime(2026, 5, 4, 17, 30, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+10m", NOW + timedelta(minutes=10)),
        ("18:00", NOW.replace(hour=18, minute=0)),
        ("9:15:30", NOW.replace(hour=9, minute=15, second=30) + timedelta(days=1)),
        ("2026-05-05T18:00", NOW.replace(day=5, hour=18, minute=0)),
        ("2026-05-04T16:00Z", datetime(2026, 5, 4, 16, tzinfo=UTC)),
    ],
)
def test_times_as_people_write_them(text: str, expected: datetime) -> None:
    assert parse_when(text, NOW) == expected


def test_nonsense_is_answered_with_examples() -> None:
    with pytest.raises(ProtocolError, match="18:00"):
        parse_when("soon", NOW)


def test_a_file_is_named_as_on_disk_or_as_in_the_url(tmp_path: Path) -> None:
    (tmp_path / "iso").mkdir()
    (tmp_path / "iso" / "a b.img").write_bytes(b"x")
    assert url_path(str(tmp_path / "iso" / "a b.img"), tmp_path) == "/iso/a b.img"
    assert url_path("/iso/a b.img", tmp_path) == "/iso/a b.img"
    assert url_path("iso/a b.img", tmp_path) == "/iso/a b.img"
    for outside in ("/etc/hostname", "../x", "/iso"):
        with pytest.raises(ProtocolError, match="no file"):
            url_path(outside, tmp_path)


def test_send_writes_an_entry_and_says_when(tmp_path: Path) -> None:
    release, state = tmp_path / "release", tmp_path / "state"
    release.mkdir()
    (release / "obj.bin").write_bytes(b"x" * 100)
    words = ["multicast", "send", "/obj.bin", "--at", "2031-01-01T00:00Z", "--passes", "2"]
    words += ["--no-return-channel", "--directory", str(release), "--state", str(state)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "/obj.bin will be sent at 2031-01-01" in result.output
    (file,) = (state / FOLDER).glob("*.json")
    entry = read_entry(file)
    assert (entry.path, entry.passes, entry.listens) == ("/obj.bin", 2, False)
    assert entry.at == datetime(2031, 1, 1, tzinfo=UTC).timestamp()


def test_a_wrong_time_or_file_is_one_sentence(tmp_path: Path) -> None:
    words = ["multicast", "send", "/nothing", "--directory", str(tmp_path), "--state", "s"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert result.output.startswith("tidegate: there is no file")
    assert result.output.count("\n") == 1
