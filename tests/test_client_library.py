"""The library as a stranger meets it: arguments, progress, errors, cancel and resume."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.faulty_mirrors import Behaviour, running
from tidegate import (
    DownloadFailed,
    LocalProblem,
    Options,
    Progress,
    UsageProblem,
    fetch,
    fetch_blocking,
)

DATA = bytes(range(256)) * 4096
GUIDE = Path(__file__).parent.parent / "docs" / "library.md"


def options(folder: Path, **more: Any) -> Options:
    return Options(data_folder=str(folder / "data"), environ={}, **more)


def test_one_url_and_a_path_as_text_will_do(tmp_path: Path) -> None:
    import hashlib

    told: list[Progress] = []
    checksum = "sha256:" + hashlib.sha256(DATA).hexdigest()
    with running(Behaviour(DATA)) as (mirror,):
        result = fetch_blocking(
            mirror.url,
            str(tmp_path / "x.iso"),
            options(tmp_path, checksum=checksum),
            on_progress=told.append,
        )
    assert (tmp_path / "x.iso").read_bytes() == DATA
    assert result.verified == "checksum"
    last = told[-1]
    assert (last.done_bytes, last.size_bytes, last.rate_bytes_s) == (len(DATA), len(DATA), 0)
    counts = [one.done_bytes for one in told]
    assert counts == sorted(counts)


def test_progress_tells_the_place_in_a_queue(tmp_path: Path) -> None:
    places: list[tuple[int | None, float | None]] = []
    with running(Behaviour(DATA, ticket_first=True, ticket_retry="1")) as (mirror,):
        fetch_blocking(
            mirror.url,
            tmp_path / "x.iso",
            options(tmp_path),
            on_progress=lambda now: places.append((now.place, now.starts_in_s)),
        )
    waits = [seconds for place, seconds in places if place is not None]
    assert waits
    assert all(seconds is None or seconds >= 0 for seconds in waits)
    assert places[-1] == (None, None)


@pytest.mark.parametrize(
    ("urls", "output", "said"),
    [
        ("ftp://a.example/x", "x", "'ftp://a.example/x' is not an http or https URL"),
        ("http://a.example:0/x", "x", "names port 0, which no server has"),
        ([], "x", "name at least one URL"),
        (7, "x", "7 is neither"),
        (["http://a.example/x", Path("y")], "x", "is neither"),
        (b"http://a.example/x", "x", "is neither"),
        ("http://a.example/x", None, "a path or a file descriptor, not None"),
        ("http://a.example/x", b"x", "a path or a file descriptor, not b'x'"),
        ("http://a.example/x", True, "a path or a file descriptor, not True"),
        ("http://a.example/x", "", "the output '' names no file"),
        ("http://a.example/x", Path("/"), "the output '/' names no file"),
        ("http://a.example/x", "a\0b", "the output 'a\\x00b' names no file"),
        ("http://a.example/x", "a\ud800b", "the output 'a\\ud800b' names no file"),
    ],
)
def test_a_wrong_argument_is_named(urls: Any, output: Any, said: str) -> None:
    with pytest.raises(UsageProblem, match=re.escape(said)):
        asyncio.run(fetch(urls, output))
    with pytest.raises(UsageProblem, match=re.escape(said)):
        fetch_blocking(urls, output)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"checksum": "sha256:.."}, "'sha256:..' is no digest; write it like sha256:HEX"),
        ({"checksum": "md5:" + 64 * "0"}, "is no digest"),
        ({"checksum": ("sha256", "00")}, "(algorithm, raw digest)"),
        ({"checksum": ("sha256", b"00")}, "(algorithm, raw digest)"),
        ({"checksum": 5}, "(algorithm, raw digest)"),
        ({"timeout_s": "30"}, "the time-out must be a number, not '30'"),
        ({"timeout_s": 0}, "the time-out must be more than 0"),
        ({"connections": -1}, "the number of connections must be more than 0"),
        ({"headers": ("Accept: */*",)}, "headers are pairs of text"),
        ({"headers": {"Accept": "*/*"}}, "headers are pairs of text"),
        ({"headers": (("A", "1\r\nB: 2"),)}, "pairs of text of one line"),
        ({"data_folder": 5}, "data_folder must be a path, not 5"),
        ({"data_folder": "\ud800"}, "data_folder must be a path, not '\\ud800'"),
        ({"ca_file": b"x"}, "ca_file must be a path, not b'x'"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageProblem, match=re.escape(said)):
        Options(**wrong)


def test_a_digest_may_be_text_or_bytes() -> None:
    raw = bytes(range(32))
    for checksum in (f"sha256:{raw.hex()}", f"SHA-256:{raw.hex()}", raw.hex(), ("sha256", raw)):
        assert Options(checksum=checksum).digest == ("sha256", raw)
    assert Options().digest is None


def test_blocking_inside_a_loop_is_told_plainly(tmp_path: Path) -> None:
    async def wrong() -> None:
        fetch_blocking("http://a.example/x", tmp_path / "x")

    with pytest.raises(UsageProblem, match="await fetch"):
        asyncio.run(wrong())


def test_a_callback_that_fails_ends_the_download(tmp_path: Path) -> None:
    def broken(now: Progress) -> None:
        raise KeyError("mine")

    with (
        running(Behaviour(DATA, rate=400_000)) as (mirror,),
        pytest.raises(LocalProblem) as told,
    ):
        fetch_blocking(mirror.url, tmp_path / "x", options(tmp_path), on_progress=broken)
    assert isinstance(told.value.__cause__, KeyError)


def test_a_callback_that_fails_once_the_file_is_whole_is_told_alike(tmp_path: Path) -> None:
    """The last call of `on_progress` let its exception through as it was."""

    def broken(now: Progress) -> None:
        if now.done_bytes == now.size_bytes:
            raise KeyError("mine")

    with (
        running(Behaviour(DATA)) as (mirror,),
        pytest.raises(LocalProblem, match="the file is whole") as told,
    ):
        fetch_blocking(mirror.url, tmp_path / "x", options(tmp_path), on_progress=broken)
    assert isinstance(told.value.__cause__, KeyError)
    assert (tmp_path / "x").read_bytes() == DATA


def test_options_of_another_type_are_named(tmp_path: Path) -> None:
    for wrong in ({}, {"max_wait_s": 5}, 5):
        with pytest.raises(UsageProblem, match="options are an Options, not"):
            fetch_blocking("http://a.example/x", tmp_path / "x", wrong)  # type: ignore[arg-type]


def test_a_cancelled_download_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    path = tmp_path / "x.iso"
    wanted = options(tmp_path)

    async def cancel_on_the_way(url: str) -> None:
        task: asyncio.Task[object]

        def stop(now: Progress) -> None:
            if now.done_bytes > len(DATA) // 4:
                task.cancel()

        task = asyncio.ensure_future(fetch(url, path, wanted, on_progress=stop))
        with pytest.raises(asyncio.CancelledError):
            await task

    with running(Behaviour(DATA, rate=1_000_000)) as (mirror,):
        asyncio.run(cancel_on_the_way(mirror.url))
        assert not path.exists()
        result = fetch_blocking(mirror.url, path, wanted)
    assert path.read_bytes() == DATA
    assert result.resumed_bytes > len(DATA) // 8


def test_every_error_is_exported_and_stands_in_the_guide_with_its_code() -> None:
    from tidegate.client.net import errors

    kinds = {
        one
        for _, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, DownloadFailed)
    }
    assert {one.__name__ for one in kinds} <= set(tidegate.__all__)
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([a-z-]+) \|", GUIDE.read_text(), re.MULTILINE)
    told = {(name, int(code), kind) for name, code, kind in rows}
    assert told == {(one.__name__, one.code, one.kind) for one in kinds - {DownloadFailed}}
    assert len(GUIDE.read_text().split()) <= 500
