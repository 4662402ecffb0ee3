"""Configuration: layers, units, origins, and faults that name themselves."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidegate.server.app.bootstrap import open_memory
from tidegate.server.app.cli.config import config as config_command
from tidegate.server.app.cli.config import manual
from tidegate.server.app.cli.serve import FLAGS, load_or_fail, serve
from tidegate.server.app.config import (
    CannotStart,
    ConfigError,
    Flag,
    field_of,
    load_config,
    setting_names,
    value_of,
    without_password,
)
from tidegate.server.app.settings import ServerConfig, split_address
from tidegate.server.store.queries import add_revision


def load(tmp_path: Path, text: str = "", environ: Any = None, **flags: Any) -> Any:
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    named = {name.replace("__", "."): Flag(value, "--x") for name, value in flags.items()}
    return load_config(file, environ or {}, named)


def test_defaults_then_file_then_environment_then_flags(tmp_path: Path) -> None:
    text = 'policy = "fcfs"\nbandwidth = "10Mbit"\n[admission]\nslots = 10\nbusy_retry_s = "1m"\n'
    environ = {"TIDEGATE_SLOTS": "20", "TIDEGATE_BANDWIDTH": "20Mbit", "OTHER": "x"}
    loaded = load(tmp_path, text, environ, admission__slots="30")
    config = loaded.config
    assert config.policy == "fcfs"
    assert config.bandwidth == 2_500_000
    assert config.admission.slots == 30
    assert config.admission.busy_retry_s == 60
    assert loaded.origin("policy").endswith("tidegate.toml")
    assert loaded.origin("bandwidth") == "environment TIDEGATE_BANDWIDTH"
    assert loaded.origin("admission.slots") == "flag --x"
    assert loaded.origin("drain_s") == "default"


@pytest.mark.parametrize("text", ["bandwidth = 40", 'bandwidth = "40"', "[multicast]\nrate = 40"])
def test_a_rate_without_a_unit_is_refused(tmp_path: Path, text: str) -> None:
    """40 was 320 bit/s, and nobody who wrote it meant that."""
    with pytest.raises(ConfigError, match="40Mbit"):
        load(tmp_path, text + "\n")


@pytest.mark.parametrize("text", ["5000", '"5000"', '"5kB/s"'])
def test_a_name_that_says_its_unit_takes_a_bare_number(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, f"[limits]\nmin_rate_bytes_s = {text}\n").config
    assert config.limits.min_rate_bytes_s == 5000


def test_the_environment_reaches_every_section_and_reads_lists(tmp_path: Path) -> None:
    environ = {
        "TIDEGATE_LISTEN": "127.0.0.1:1, [::1]:2",
        "TIDEGATE_HOLDING__MOST": "7",
        "TIDEGATE_SMALL_BELOW": "64KiB",
        "TIDEGATE_ADMISSION__CLASS_WEIGHTS": "{iron = 1.5}",
        "TIDEGATE_COME_BACK_S": "",
        "TIDEGATE_SHOW_HIDDEN": "true",
        "TIDEGATE_ACCESS_LOG_FORMAT": "{client} {status}",
        "TIDEGATE_PORT": "tcp://10.0.0.1:80",
        # Those of the clients' commands are no mistake.
        "TIDEGATE_ADMIN_TOKEN": "tga_x",
    }
    loaded = load(tmp_path, "", environ)
    config = loaded.config
    assert config.listen == ("127.0.0.1:1", "[::1]:2")
    assert config.holding.most == 7
    assert config.admission.small_below_bytes == 65536
    assert config.admission.class_weights == {"iron": 1.5}
    assert config.admission.come_back_s is None
    assert config.show_hidden is True
    assert config.access_log_format == "{client} {status}"
    assert loaded.ignored == ("TIDEGATE_PORT",)


def test_a_misspelt_variable_is_said_by_each_command_that_reads_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_SLOTZ", "4")
    load_or_fail(None, {})
    told = capsys.readouterr().err
    assert "tidegate: TIDEGATE_SLOTZ names no setting and is ignored." in told


@pytest.mark.parametrize(
    ("slots", "reserved"), [(1, 0), (2, 1), (4, 1), (12, 2), (36, 6), (400, 6)]
)
def test_whoever_names_only_the_slots_gets_a_sixth_reserved(
    tmp_path: Path, slots: int, reserved: int
) -> None:
    config = load(tmp_path, admission__slots=str(slots)).config
    assert config.admission.reserve_small == reserved


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("slots = 3", r"slots .*there is no such setting; did you mean admission\.slots\?"),
        ('bandwith = "40Mbit"', r"did you mean bandwidth\?"),
        ('zzz = "x"', "there is no such setting\\.$"),
        ("[admission]\nslots = 0", r"admission.slots .*at least 1 \(it is 0\)"),
        ('mirror_prefix = "x"', r"mirror_prefix .*URL path .* at both ends \(it is 'x'\)\.$"),
        ("[admission]\nslots = 3\nreserve_small = 3", "admission.*leaves no slot for large"),
        ('bandwidth = "fast"', "bandwidth .*write it like 100Mbit"),
        ('listen = ["nowhere"]', "listen.*is not HOST:PORT"),
        (
            'database = "postgres://u:p@x/y"',
            r"does not fit: sqlite:.* \(it is 'postgres://u:\*\*\*@x/y'\)\.$",
        ),
        ('listen = ["unix:"]', "unix: needs a path"),
        ('tls_cert = "x.pem"', "tls_cert and tls_key belong together"),
        ('access_log = "release/log/a"', "access_log must not lie in the served"),
        ('directory = "."\naccess_log = "a.log"', "access_log must not lie in the served"),
        ('mirrors = ["ftp://x/"]', "not an http or https URL"),
        (
            '[[rules]]\npath = "/x"\nprequeue_from = 2030-01-01T00:00:00Z',
            "the pre-queue of '/x' needs hidden_until, its end",
        ),
        ('trusted_proxies = ["10.0.0.0/99"]', "trusted_proxies"),
        ("x = [", "is not valid TOML"),
        ('listen = "127.0.0.1:80"', r"listen .*must be a list, such as \["),
        ("directory = 5", "directory .*must be a path in quotes"),
        ('state = ""', "state .*must not be empty"),
        ('mirror_channel = "main"', "mirror_channel needs mirror_publish"),
        ('[[rules]]\npath = "43.0/*"', "rules .*'43.0/\\*' begins with neither / nor"),
        ('[[rules]]\npath = "/a"\nhidden_until = "tomorrow"', r"must be a time, such as 2030-"),
        ('policy = "best"', "policy .*choose one of fcfs, reserve"),
        ('[[rules]]\npath = "/a"\ncolour = 1', "rules.0.colour .*there is no such setting"),
        ('[[holding.tools]]\nagent = "("\nmanner = "hold"', "not a regular expression"),
    ],
)
def test_each_fault_is_one_sentence_with_its_origin(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as fault:
        load(tmp_path, text)
    assert "tidegate.toml" in str(fault.value) or "configuration: " in str(fault.value)
    assert all(line.endswith((".", "?")) for line in fault.value.faults)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.toml", {}, {})


def test_every_flag_names_a_setting_and_every_option_has_one() -> None:
    for name in FLAGS.values():
        assert field_of(name) is not None, name
    options = {option for parameter in serve.params for option in parameter.opts}
    assert options - {"directory", "--config", "--sample"} == set(FLAGS)


def test_every_setting_says_what_it_is_for() -> None:
    for name in setting_names():
        field = field_of(name)
        assert field is not None
        assert field.description, name
        value_of(ServerConfig(), name)


def test_check_and_show(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[admission]\nslots = 9\n")
    run = CliRunner().invoke
    good = run(config_command, ["check", "--config", str(file)])
    assert good.exit_code == 0
    assert "good" in good.output
    shown = run(config_command, ["show", "--config", str(file)])
    [line] = [line for line in shown.output.splitlines() if line.startswith("slots =")]
    assert line.split() == ["slots", "=", "9", "#", str(file)]
    document = json.loads(run(config_command, ["show", "--json", "--config", str(file)]).output)
    assert document["admission.slots"] == {"value": 9, "origin": str(file)}
    assert document["policy"]["origin"] == "default"
    file.write_text("slots = 9\n")
    bad = run(config_command, ["check", "--config", str(file)])
    assert bad.exit_code == 2
    assert "there is no such setting" in bad.output


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:0", ("::1", 0)),
        (":8080", ("0.0.0.0", 8080)),
        ("host.example:443", ("host.example", 443)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "80", "::1", "::1:80", "a:b", "a:99999", "a:-1"])
def test_bad_addresses_say_how_to_write_them(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(text)


def test_the_manual_is_what_the_schema_says() -> None:
    page = Path(__file__).parent.parent / "docs" / "configuration.md"
    assert page.read_text("utf-8") == manual(), (
        "write it anew: tidegate config reference > docs/configuration.md"
    )


def test_show_names_what_a_revision_of_the_admin_page_overrides(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    file = tmp_path / "t.toml"
    file.write_text(f'state = "{state}"\n[admission]\nslots = 9\n')

    def show() -> dict[str, dict[str, Any]]:
        done = CliRunner().invoke(config_command, ["show", "--json", "--config", str(file)])
        found: dict[str, dict[str, Any]] = json.loads(done.output)
        return found

    assert show()["admission.slots"] == {"value": 9, "origin": str(file)}
    assert list(state.iterdir()) == [], "only looking makes no database"
    memory = open_memory(load_config(file, {}, {}).config, 1000.0)
    assert show()["admission.slots"] == {"value": 9, "origin": str(file)}
    settings = {**memory.revision.settings, "slots": 30}
    with memory.database.begin() as session:
        add_revision(session, replace(memory.revision, who="anna", settings=settings, number=0))
    over = show()["admission.slots"]
    assert over["value"] == 30
    assert over["origin"].startswith("admin page, revision ")
    assert over["origin"].endswith("by anna")
    assert over["overridden"] == {"value": 9, "origin": str(file)}
    assert "overridden" not in show()["admission.reserve_small"]
    text = CliRunner().invoke(config_command, ["show", "--config", str(file)]).output
    [line] = [line for line in text.splitlines() if line.startswith("slots =")]
    assert "by anna" in line
    assert line.endswith(f"; {file} says 9")
    file.write_text(f'state = "{state}"\n[admission]\nslots = 8\n')
    assert show()["admission.slots"] == {"value": 8, "origin": str(file)}, "the file changed last"
    memory.database.close()
    (state / "tidegate.db").write_bytes(b"nonsense" * 1000)
    ill = CliRunner().invoke(config_command, ["show", "--config", str(file)])
    assert ill.exit_code == 0
    assert "is not shown" in ill.stderr


def test_a_disk_without_inodes_is_told_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite says no more than that it cannot open the file.
    (tmp_path / "tidegate.db").mkdir()
    config = load_config(None, {"TIDEGATE_STATE": str(tmp_path)}, {}).config
    with pytest.raises(CannotStart, match="Repair it"):
        open_memory(config, 1000.0)
    room = os.statvfs(tmp_path)
    fields = [*room]
    fields[7] = 0
    monkeypatch.setattr(os, "statvfs", lambda folder: os.statvfs_result((*fields, room.f_fsid)))
    with pytest.raises(CannotStart, match="Make room on its disk"):
        open_memory(config, 1000.0)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("sqlite:////var/lib/tidegate.db", "sqlite:////var/lib/tidegate.db"),
        ("sqlite:///near.db", "sqlite:///near.db"),
        ("postgresql://tide:secret@db:5432/gate", "postgresql://tide:***@db:5432/gate"),
        (
            "postgresql:///gate?password=secret&host=/run",
            "postgresql:///gate?password=***&host=/run",
        ),
        ("40Mbit", "40Mbit"),
    ],
)
def test_an_address_is_shown_as_it_was_given_but_for_its_passwords(given: str, shown: str) -> None:
    assert without_password(given) == shown


@pytest.mark.parametrize(("given", "place"), [("off", None), ("./off", "./off"), ("-", "-")])
def test_an_access_log_that_is_off_is_no_file(
    tmp_path: Path, given: str, place: str | None
) -> None:
    assert load(tmp_path, f'access_log = "{given}"\n').config.access_log == place
    assert load(tmp_path, access_log=given).config.access_log == place
