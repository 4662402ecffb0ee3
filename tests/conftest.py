"""Rules for the whole suite: in CI a skipped test is a failed one."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType

import jinja2
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests import installed, size
from tests.postgres import postgres_running

# No deadline: a shared machine may stall for longer than any honest limit.
settings.register_profile(
    "tidegate", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidegate")

# A shell that starts this in the background has it, and all it starts, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As in a server (`server.app.run`). Collecting took a tenth of the time of unit tests.
gc.set_threshold(20_000, 20, 20)

IN_CI = bool(os.environ.get("CI"))


class CompiledTemplates(jinja2.BytecodeCache):
    """Templates are compiled once in this process, and not again for each server of a test.

    Compiling them was three quarters of what a test of the admin pages costs.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], CodeType] = {}

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        bucket.code = self._kept.get(self._key(bucket))

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        assert bucket.code is not None
        self._kept[self._key(bucket)] = bucket.code

    @staticmethod
    def _key(bucket: jinja2.bccache.Bucket) -> tuple[object, ...]:
        made = bucket.environment
        options = made.autoescape, made.trim_blocks, made.lstrip_blocks, made.is_async
        return type(made), *options, bucket.key, bucket.checksum


jinja2.Environment.__init__ = functools.partialmethod(  # type: ignore[method-assign]
    jinja2.Environment.__init__, bytecode_cache=CompiledTemplates()
)


def pytest_configure(config: pytest.Config) -> None:
    """Install the checkout once, and have all processes of the suite run the installation."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        installed.install()
    # The process that only starts workers of pytest-xdist must leave them the checkout.
    if is_worker or not config.getoption("numprocesses", None):
        installed.enter(os.environ)


#: The files that take longest come first, or the others' processes would wait for them at the end.
LONGEST = (
    "test_e2e_cluster",
    "test_e2e_loadtest",
    "test_e2e_loadtest_cli",
    "test_e2e_image",
    "test_e2e_deb",
    "test_docs_benches",
    "test_e2e_gate",
    "test_docs_commands",
    "test_e2e_admin",
    "test_e2e_workers",
    "test_e2e_installed",
    "test_e2e_get",
    "test_e2e_staging",
    "test_e2e_multicast",
    "test_e2e_mirror",
    "test_e2e_socket_activation",
    "test_e2e_start_faults",
    "test_e2e_postgres",
    "test_e2e_waiting_page",
    "test_e2e_disk",
    "test_e2e_firefox",
    "test_e2e_crash",
    "test_e2e_admin_api",
    "test_e2e_public_pages",
    "test_twins_servers",
    "test_twins_http",
    "test_e2e_chaos",
    "test_search",
)

#: Files whose tests wait long and share nothing: each goes where there is room.
SPLIT = ("test_e2e_gate", "test_docs_commands", "test_e2e_workers", "test_e2e_waiting_page")


class ByFile(LoadFileScheduling):
    """Sends a file to one process, and the tests of `SPLIT` to several."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if Path(file).stem in SPLIT else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """What `--dist loadfile` means here."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


#: Tests that take over a second of CPU, in one form or in all together: `file::function`, a line
#: each. They have the marker `slow`.
SLOW = Path(__file__).with_name("slow.txt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and mark what is slow."""
    places = {stem: place for place, stem in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    slow = set(SLOW.read_text("utf-8").split())
    for item in items:
        if item.nodeid.removeprefix("tests/").partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave modules and tests out of what is collected as garbage from now on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL for all tests of this process that need none of their own."""
    with postgres_running() as url:
        yield url


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show how large each room is, after a run of the whole suite."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and not config.getoption("collectonly"):
        terminalreporter.write_line("\n" + size.table())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in CI: a missing tool must be noticed there."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be skipped: {report.longrepr}"
    return report
