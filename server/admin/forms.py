"""The settings form: built from the schema of `PolicySettings`, read back into it.

Every setting the schema has is in the form, grouped by the policies that read it; a new one needs
nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from policies.registry import readers_of
from policies.settings import PolicySettings
from server.admin.web import Call

PREFIX = "s."


@dataclass(frozen=True, slots=True)
class Setting:
    """One input of the form. `kind` is number, mapping, choice, switch or text."""

    name: str
    label: str
    help: str
    unit: str
    kind: str
    policies: tuple[str, ...]
    required: bool
    whole: bool
    bounds: Mapping[str, Any]
    default: Any
    choices: tuple[str, ...] = ()


def settings_of(model: type[BaseModel] = PolicySettings) -> list[Setting]:
    """All settings in the order of the schema."""
    properties = model.model_json_schema().get("properties", {})
    return [_setting(name, rules) for name, rules in properties.items()]


def _setting(name: str, rules: Mapping[str, Any]) -> Setting:
    options = [o for o in rules.get("anyOf", [rules]) if o.get("type") != "null"]
    first = options[0] if options else rules
    kinds = {"object": "mapping", "boolean": "switch", "string": "text"}
    kind = "choice" if "enum" in first else kinds.get(first.get("type", ""), "number")
    names = {
        "minimum": "min",
        "exclusiveMinimum": "above",
        "maximum": "max",
        "exclusiveMaximum": "below",
    }
    return Setting(
        name=name,
        label=name.removesuffix("_s").removesuffix("_bytes").replace("_", " ").capitalize(),
        help=rules.get("description", "").replace("`", ""),
        unit=rules.get("unit", ""),
        kind=kind,
        policies=readers_of(name),
        required=not any(o.get("type") == "null" for o in rules.get("anyOf", ())),
        whole=first.get("type") == "integer",
        bounds={names[key]: first[key] for key in names if key in first},
        default=rules.get("default"),
        choices=tuple(first.get("enum", ())),
    )


def bound_text(setting: Setting) -> str:
    """The bounds in words: `1 to 1,000,000`."""
    found = setting.bounds
    low = _count(found["min"]) if "min" in found else ""
    if "above" in found:
        low = f"above {_count(found['above'])}"
    high = found.get("max", found.get("below"))
    if low and high is not None:
        return f"{low} to {_count(high)}"
    return low or (f"up to {_count(high)}" if high is not None else "")


def _count(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:,.12g}"


def shown(value: Any) -> str:
    """A setting's value as its input shows it."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "\n".join(f"{name} = {number:g}" for name, number in value.items())
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Filled:
    """What came back: the settings if they hold, else the faults by field; texts to show again."""

    settings: PolicySettings | None
    texts: Mapping[str, str]
    errors: Mapping[str, str]
    changed: frozenset[str] = frozenset()


def read(call: Call, base: Mapping[str, Any]) -> Filled:
    """The settings of a submitted form; fields it does not carry stay as in `base`."""
    texts: dict[str, str] = {}
    values = dict(base)
    errors: dict[str, str] = {}
    for setting in settings_of():
        name = PREFIX + setting.name
        if name not in call.form:
            texts[setting.name] = shown(base.get(setting.name))
            continue
        texts[setting.name] = text = call.field(name)
        try:
            values[setting.name] = _value(setting, text)
        except ValueError as error:
            errors[setting.name] = str(error)
    changed = frozenset(errors) | changed_from(base, values)
    if errors:
        return Filled(None, texts, errors, changed)
    try:
        return Filled(PolicySettings.model_validate(values), texts, {}, changed)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            words = fault["msg"].removeprefix("Value error, ")
            # A rule between fields has no place of its own; its sentence names the fields.
            place = str(fault["loc"][0]) if fault["loc"] else _named_in(words)
            errors[place] = _kind_words(words)
        return Filled(None, texts, errors, changed)


def changed_from(base: Mapping[str, Any], values: Mapping[str, Any]) -> frozenset[str]:
    """The settings whose value is another."""
    return frozenset(name for name, value in values.items() if value != base.get(name))


def _named_in(words: str) -> str:
    found = [(words.index(s.name), s.name) for s in settings_of() if s.name in words]
    return min(found)[1] if found else ""


def _kind_words(words: str) -> str:
    return words.replace("Input should be", "This must be")


def _value(setting: Setting, text: str) -> Any:
    if setting.kind == "mapping":
        return _mapping(text)
    if setting.kind == "switch":
        return bool(text)
    if not text and not setting.required:
        return None
    if setting.kind == "number":
        try:
            return int(text) if setting.whole else float(text)
        except ValueError:
            word = "a whole number" if setting.whole else "a number"
            raise ValueError(f"This must be {word}.") from None
    return text


def _mapping(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, number = line.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            sign = ""
        if not sign or not name.strip():
            raise ValueError("Write one line for each: name = number.") from None
    return found


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a diff."""

    name: str
    before: str
    after: str


def diff(
    policy: str, settings: Mapping[str, Any], new_policy: str, new_settings: Mapping[str, Any]
) -> list[DiffLine]:
    """What differs between two revisions, the policy first."""
    found = [DiffLine("policy", policy, new_policy)] if policy != new_policy else []
    for name in dict.fromkeys((*settings, *new_settings)):
        before, after = settings.get(name), new_settings.get(name)
        if before != after:
            found.append(DiffLine(name, _word(before), _word(after)))
    return found


def _word(value: Any) -> str:
    return (shown(value) or "(none)").replace("\n", ", ")
