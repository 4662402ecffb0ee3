"""Backups of the state folder: what is in one, and what is refused."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.server.app.cli.backup import backup, restore


@pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
def test_a_backup_that_holds_more_than_files_of_its_folder_is_refused_whole(
    tmp_path: Path, name: str
) -> None:
    source, state = tmp_path / "bad.tar.gz", tmp_path / "state"
    with tarfile.open(source, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("keys.json"))
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "../outside"
        archive.addfile(entry)
    done = CliRunner().invoke(restore, ["--state", str(state), str(source)])
    assert done.exit_code == 1
    assert f"{name!r} is no file of a state folder" in done.output
    # The next try finds no folder that is not empty.
    assert not state.exists()
    assert not (tmp_path / "outside").exists()


def test_a_backup_is_restored_by_the_first_python_that_is_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`TarFile.extractall` takes a filter only from Python 3.11.4 on."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.delattr(tarfile.TarFile, "extractall")
    state, again, archive = tmp_path / "state", tmp_path / "again", tmp_path / "saved.tar.gz"
    (state / "tls" / "old").mkdir(parents=True)
    contents = {"keys.json": b"{}", "tls/old/account.key": b"secret"}
    for name, content in contents.items():
        (state / name).write_bytes(content)
    for command, folder in ((backup, state), (restore, again)):
        done = CliRunner().invoke(command, ["--state", str(folder), str(archive)])
        assert done.exit_code == 0, done.output
        assert f"The state folder {folder} is " in done.output
    for name, content in contents.items():
        assert (again / name).read_bytes() == content
        assert (again / name).stat().st_mode & 0o777 == 0o600
        assert (again / name).stat().st_mtime == int((state / name).stat().st_mtime)
    for name in ("tls", "tls/old"):
        assert (again / name).stat().st_mode & 0o777 == 0o700
