"""The settings form and its words: built from the schema of `PolicySettings`, read back into it.

Every setting the schema has is in the form. A new one without `WORDS` has its name and its
description there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from ...policies.registry import readers_of
from ...policies.settings import PolicySettings, one_line, read_text
from ...protocol.units import BadUnit
from ..control.problems import Problem, invalid, wrong
from ..control.revisions import shown
from .web import Call


class SettingWords(NamedTuple):
    """The name of one setting for people, and of the chart of the page Now."""

    label: str
    chart: str


#: The settings that most servers need.
MAIN: Mapping[str, SettingWords] = {
    "bandwidth_bytes_s": SettingWords("Line", "goodput"),
    "slots": SettingWords("Slots", "slots"),
    "small_below_bytes": SettingWords("Small below", "slots"),
}

#: All other settings, by what they are for.
ADVANCED: Mapping[str, Mapping[str, SettingWords]] = {
    "Slots and line": {
        "reserve_small": SettingWords("Slots kept for small files", "slots"),
        "slots_max": SettingWords("Most downloads at once", "slots"),
    },
    "Shares": {
        "network_shares": SettingWords("Shares of one network", "queue"),
        "class_weights": SettingWords("Priority classes", "queue"),
        "tickets_per_client": SettingWords("Tickets of one client", "queue"),
        "connections_per_lease": SettingWords("Connections of one download", "held"),
        "slot_use_fraction": SettingWords("Least use of a slot", "slots"),
        "lease_idle_s": SettingWords("Time to reconnect", "slots"),
    },
    "Turns": {
        "ticket_ttl_s": SettingWords("Time to take a turn", "queue"),
        "ready_list": SettingWords("Ready list", "queue"),
        "ready_grow_s": SettingWords("Growth of the ready list", "queue"),
        "tickets_max": SettingWords("Most tickets", "queue"),
    },
    "When clients come back": {
        "come_back_s": SettingWords("Fixed time", "wait"),
        "busy_retry_s": SettingWords("Time without a ticket", "flow"),
        "retry_min_s": SettingWords("Shortest time", "flow"),
        "retry_max_s": SettingWords("Longest time", "flow"),
        "retry_jitter": SettingWords("Spread", "flow"),
    },
    "Clients that come too early": {
        "early_polls_free": SettingWords("Early visits forgiven", "flow"),
        "early_tolerance_s": SettingWords("Tolerance", "flow"),
        "early_penalty_s": SettingWords("Delay", "wait"),
        "early_penalty_max_s": SettingWords("Most delay", "wait"),
        "early_answer_s": SettingWords("Slow answer", "held"),
    },
}

WORDS: Mapping[str, SettingWords] = {
    **MAIN,
    **{name: words for group in ADVANCED.values() for name, words in group.items()},
}


def setting_title(name: str) -> str:
    """What people call a setting; one that has no words yet keeps its name."""
    found = WORDS.get(name)
    return found.label if found else name.replace("_", " ").capitalize()


def in_words(text: str) -> str:
    """A text about settings, in which each has the name that people know."""
    return re.sub(r"\w+_\w+", lambda found: f"“{setting_title(found[0])}”", text)


def policy_title(name: str) -> str:
    return "First come" if name == "fcfs" else name.capitalize()


PREFIX = "s."


@dataclass(frozen=True, slots=True)
class Setting:
    """One input of the form; one that is a `mapping` takes a line for each name."""

    name: str
    help: str
    unit: str
    mapping: bool
    policies: tuple[str, ...]
    required: bool
    whole: bool
    bounds: Mapping[str, Any]
    default: Any


@functools.cache
def settings_of(model: type[BaseModel] = PolicySettings) -> tuple[Setting, ...]:
    """All settings in the order of the schema, which takes 3 ms to make."""
    properties = model.model_json_schema().get("properties", {})
    return tuple(_setting(name, rules) for name, rules in properties.items())


def _setting(name: str, rules: Mapping[str, Any]) -> Setting:
    options = [o for o in rules.get("anyOf", [rules]) if o.get("type") != "null"]
    first = options[0] if options else rules
    names = {
        "minimum": "min",
        "exclusiveMinimum": "above",
        "maximum": "max",
        "exclusiveMaximum": "below",
    }
    return Setting(
        name=name,
        help=one_line(rules.get("description")).replace("`", ""),
        unit=rules.get("unit", ""),
        mapping=first.get("type") == "object",
        policies=readers_of(name),
        required=not any(o.get("type") == "null" for o in rules.get("anyOf", ())),
        whole=first.get("type") == "integer",
        bounds={names[key]: first[key] for key in names if key in first},
        default=rules.get("default"),
    )


def bound_text(setting: Setting) -> str:
    """The bounds in words: `1 to 1,000,000`, `2s to 1h`."""
    found = setting.bounds
    low = _bound(setting, found["min"]) if "min" in found else ""
    if "above" in found:
        low = "above 0" if not found["above"] else f"above {_bound(setting, found['above'])}"
    high = found.get("max", found.get("below"))
    if low and high is not None:
        return f"{low} to {_bound(setting, high)}"
    return low or (f"up to {_bound(setting, high)}" if high is not None else "")


def _bound(setting: Setting, number: float) -> str:
    if setting.unit in ("bytes", "bytes/s", "s"):
        return shown(setting.name, number)
    return f"{int(number):,}" if number == int(number) else f"{number:,.12g}"


def is_changed(name: str, text: str, value: Any) -> bool:
    """Whether the text of a field means another value than this, or none."""
    if text.split() == shown(name, value).split():
        return False
    try:
        return bool(_value(name, text, mapping=isinstance(value, Mapping)) != value)
    except BadUnit:
        return True


def _value(name: str, text: str, *, mapping: bool) -> Any:
    """What a field means. Raises BadUnit."""
    return _mapping(text) if mapping else read_text(name, PolicySettings.model_fields[name], text)


def read(call: Call, base: Mapping[str, Any]) -> PolicySettings:
    """The settings of a submitted form; fields it does not carry stay as in `base`.

    Raises Problem 422.
    """
    values = dict(base)
    unreadable: list[Problem] = []
    for setting in settings_of():
        if PREFIX + setting.name not in call.form:
            continue
        name, text = setting.name, call.field(PREFIX + setting.name)
        try:
            values[name] = _value(name, text, mapping=setting.mapping)
        except BadUnit as error:
            unreadable.append(wrong(name, str(error)))
    try:
        found = PolicySettings.model_validate(values)
    except ValidationError as error:
        problem = invalid(error, PolicySettings)
        for fault in problem.errors:
            # A rule between fields has no place of its own; its sentence begins with one of them.
            fault["field"] = fault["field"] or fault["message"].partition(" ")[0]
        unreadable.append(problem)
    if unreadable:
        first = unreadable[0]
        first.errors = [fault for one in unreadable for fault in one.errors]
        raise first
    return found


def _mapping(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, number = line.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            sign = ""
        if not sign or not name.strip():
            raise BadUnit("Write one line for each: name = number.")
    return found
