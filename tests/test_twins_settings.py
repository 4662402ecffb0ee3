"""A setting is read alike from file, variable, flag, admin page and API: same value, same fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidegate.loadtest.sim import preview
from tidegate.loadtest.sim.arguments import read_settings
from tidegate.loadtest.sim.cli import _scenario
from tidegate.loadtest.sim.scenario import Scenario
from tidegate.loadtest.workloads import make_workload
from tidegate.policies.registry import POLICIES
from tidegate.policies.settings import PolicySettings, fault_text
from tidegate.server.admin import forms
from tidegate.server.admin.policy import SettingsIn
from tidegate.server.app.config import (
    ConfigError,
    Flag,
    field_of,
    load_config,
    setting_names,
    value_of,
)
from tidegate.server.control.problems import Problem, invalid
from tidegate.server.control.revisions import shown

#: With 1 slot none can be reserved, which is a fault between two settings.
BASE = {"reserve_small": 0}
TEXTS = (
    *("", "none", "auto", "None", "true", "false", "many", "0", "1", "7", "5.0", "5.5", "-1"),
    *("+7", " 7 ", "1e3", "1_000", "1,000", "0x10", "nan", "inf", "-inf", "０", "1" + "0" * 15),
    *("20KB", "64KiB", "1.5MB", "1m", "90s", "250ms", "10Mbit", "10Mbit/s", "5kB/s", "50%", "s"),
)
NUMBERS = (0, 1, 7, 1000, 5.5, -1, -0.5, 10**15)


class Refused(str):
    """What is said of a value that is refused, without where it came from."""


def refusal(fault: str) -> Refused:
    """The sentence after the setting's name, without the value that was given."""
    words = re.sub(r" \(it is .*\)", "", fault, flags=re.DOTALL).strip().rstrip(".")
    return Refused(words[:1].lower() + words[1:])


def by_layers(name: str, **layers: Any) -> Any:
    """A setting that `load_config` reads."""
    layers = {"environ": {}, "flags": {}, "file": None, **layers}
    extra = {f"admission.{key}": Flag(value, "--base") for key, value in BASE.items()}
    extra.pop(name, None)
    try:
        loaded = load_config(layers["file"], layers["environ"], {**extra, **layers["flags"]})
    except ConfigError as error:
        (fault,) = error.faults
        return refusal(re.sub(r"^[\w.]+ \(.*?\): ", "", fault))
    return value_of(loaded.config, name)


def by_variable(name: str, text: str, file: Path) -> Any:
    variable = "TIDEGATE_" + name.upper().replace(".", "__")
    return by_layers(name, environ={variable: text}, file=file)


def by_flag(name: str, text: str, file: Path) -> Any:
    return by_layers(name, flags={name: Flag(text, "--x")}, file=file)


def by_file(name: str, text: Any, file: Path) -> Any:
    *section, key = name.split(".")
    table = "".join(f"[{one}]\n" for one in section)
    file.write_text(f"{table}{key} = {toml(text)}\n")
    try:
        return by_layers(name, file=file)
    finally:
        file.write_text("")


def toml(value: Any) -> str:
    """A TOML value."""
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def by_page(name: str, text: str) -> Any:
    key = name.removeprefix("admission.")
    form = {forms.PREFIX + key: [text.encode()]}
    call: Any = SimpleNamespace(form=form, field=lambda field: form[field][0].decode().strip())
    try:
        found = forms.read(call, PolicySettings(**BASE).model_dump())
    except Problem as problem:
        (fault,) = problem.errors
        assert key in (fault["field"], *fault["message"].split())
        return refusal(fault["message"])
    return getattr(found, key)


def by_simulator(name: str, text: str) -> Any:
    key = name.removeprefix("admission.")
    try:
        found = PolicySettings(**{**BASE, **read_settings([f"{key}={text}"])})
    except click.BadParameter as error:
        return refusal(error.message.removeprefix(f"{key}: "))
    except ValidationError as error:
        return refusal(fault_text(error.errors()[0]))
    return getattr(found, key)


def by_api(name: str, number: Any) -> Any:
    key = name.removeprefix("admission.")
    body = json.dumps({"policy": "fair", "settings": {**BASE, key: number}})
    try:
        found = SettingsIn.model_validate_json(body, strict=True)
    except ValidationError as error:
        (fault,) = invalid(error, SettingsIn).errors
        return refusal(fault["message"])
    return getattr(found.settings, key)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tidegate.toml"
    found.touch()
    return found


SCALARS = [
    name
    for name in setting_names()
    if not re.search(r"tuple|list|dict|Path", str(getattr(field_of(name), "annotation", "")))
]
POLICY = [name for name in SCALARS if name.startswith("admission.")]


def is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _kind(name: str) -> str:
    """What decides how a setting is read: its type, bounds and unit."""
    field = field_of(name)
    rules = (field.annotation, field.metadata, field.json_schema_extra)
    return f"{name in POLICY} {rules}"


#: One setting of each kind, for all texts.
FIRST = {_kind(name): name for name in reversed(SCALARS)}


@pytest.mark.parametrize("name", SCALARS)
def test_a_text_means_the_same_wherever_it_is_written(name: str, file: Path) -> None:
    """In the file, a variable, a flag, the admin page's form, and `simulate --setting`.

    A setting whose twin in type, bounds and unit has all texts has every eighth of them.
    """
    for text in TEXTS if name in FIRST.values() else TEXTS[::8]:
        said = by_flag(name, text, file)
        found = {"file": by_file(name, text, file), "variable": by_variable(name, text, file)}
        if name in POLICY:
            found["page"] = by_page(name, text)
            found["simulator"] = by_simulator(name, text.strip())
        wrong = {way: value for way, value in found.items() if not is_same(value, said)}
        assert not wrong, (name, text, said)


@pytest.mark.parametrize("name", POLICY)
def test_a_number_means_the_same_in_the_file_and_to_the_api(name: str, file: Path) -> None:
    """Within the same bounds, with the same words outside of them."""
    for number in NUMBERS:
        found, said = by_file(name, number, file), by_api(name, number)
        assert is_same(found, said), (name, number, found, said)


@given(st.dictionaries(st.text("abz", min_size=1, max_size=5), st.floats(0.01, 1000), max_size=4))
def test_weights_of_classes_mean_the_same_everywhere(weights: dict[str, float]) -> None:
    name = "admission.class_weights"
    table = "{" + ", ".join(f"{key} = {value!r}" for key, value in weights.items()) + "}"
    said = by_layers(name, environ={"TIDEGATE_ADMISSION__CLASS_WEIGHTS": table})
    lines = "\n".join(f"{key} = {value!r}" for key, value in weights.items())
    assert by_page(name, lines) == said == by_api(name, weights)


@pytest.mark.parametrize("name", [*POLICY, "admission.class_weights"])
def test_a_form_that_is_sent_back_as_it_was_shown_changes_nothing(name: str) -> None:
    key = name.removeprefix("admission.")
    rules = PolicySettings.model_json_schema()["properties"][key]
    options = rules.get("anyOf", [rules])
    ends = [one[end] for one in options for end in ("minimum", "maximum") if end in one]
    values = [getattr(PolicySettings(), key), *ends]
    if key in ("reserve_small", "retry_min_s"):
        # The upper end of these is another setting's value.
        values = values[:-1]
    if key == "class_weights":
        values += [{"gold": 1.23456789}, {"gold": 0.01, "iron": 1000.0}]
    for value in values:
        assert by_page(name, shown(key, value)) == value, value


class _Asked(Exception):
    """The scenario is made; it need not be played."""


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_preview_plays_what_the_simulator_does(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same settings the admin page and `simulate run` have the same policy and line."""
    made: list[Scenario] = []

    def simulate(scenario: Scenario, *of: Any) -> None:
        made.append(scenario)
        raise _Asked

    monkeypatch.setattr(Scenario, "simulate", simulate)
    settings = PolicySettings(slots=12, reserve_small=2, lease_idle_s=7.0)
    workload = make_workload("release-artefacts", 1)
    with pytest.raises(_Asked):
        preview.play(workload, policy, settings.model_dump(), 1e6)
    told = settings.model_dump(exclude={"slots", "reserve_small", "class_weights"})
    simulated = _scenario(
        "http" if policy == "fcfs" else policy,
        bandwidth_bytes_s=1e6,
        bandwidth=1.0,
        slots=10,
        reserve_small=2,
        come_back_s=None,
        hold=None,
        rude=0.0,
        manners="polite",
        tells_bandwidth=False,
        rtt=None,
        router_queue=None,
        settings=read_settings([f"{name}={shown(name, value)}" for name, value in told.items()]),
    )
    for found in (made[0].policy_settings(workload), made[0].conditions(workload)):
        assert found in (simulated.policy_settings(workload), simulated.conditions(workload))
    assert made[0].policy == simulated.policy
