"""Where a setting comes from: defaults < tidegate.toml < environment < flags.

The schema is `settings.ServerConfig`. This module gathers the layers, reads units (`20KB`,
`100Mbit`, `15m`), remembers each value's origin, and turns every fault into one sentence that
names the setting, its origin and the remedy.
"""

from __future__ import annotations

import errno
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ...policies.settings import PolicySettings, fault_text, one_line, read_text, unit_of
from ...protocol.errors import ProtocolError
from ...protocol.units import parse_rate
from .settings import ServerConfig


class CannotStart(Exception):
    """The server cannot start; the message is a sentence with the fault and the remedy."""


def start_fault(fault: Exception) -> str | None:
    """The sentence for what kept the server from starting; None for a fault of its own code."""
    if isinstance(fault, CannotStart):
        return str(fault)
    if isinstance(fault, MemoryError):
        return "There is too little memory to start; raise the limit (ulimit -v, MemoryMax=)."
    if isinstance(fault, RuntimeError) and "new thread" in str(fault):
        return (
            "The system gives no more threads or no memory for one; raise the limits (ulimit -u "
            "and -v, TasksMax=, MemoryMax=)."
        )
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{fault.filename or 'The state folder'}: its disk is full; make room there."
    if isinstance(fault, OSError):
        place = f"{fault.filename}: " if fault.filename else ""
        return f"{place}{fault.strerror or fault}."
    return None


class ConfigError(CannotStart):
    """A configuration that cannot be used; `faults` are whole sentences."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Flag:
    """A value from the command line and how it was written there."""

    value: Any
    name: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration; `origins` maps dotted names to where the value came from.

    A name that is missing from `origins` has its default. `ignored` are environment variables
    that start like ours but name no setting.
    """

    config: ServerConfig
    origins: Mapping[str, str]
    file: Path | None
    ignored: tuple[str, ...]

    def origin(self, name: str) -> str:
        return self.origins.get(name, "default")


def load_config(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Flag],
    defaults: Mapping[str, Flag] = MappingProxyType({}),
) -> LoadedConfig:
    """Gather all layers; `flags` maps dotted names. Without `file`, ./tidegate.toml if present.

    `defaults` are those of the command. Raises `ConfigError`.
    """
    faults: list[str] = []
    layers: dict[str, Any] = {name: flag.value for name, flag in defaults.items()}
    origins: dict[str, str] = {name: f"default of {flag.name}" for name, flag in defaults.items()}
    usual = Path("tidegate.toml")
    if file is None and usual.exists():
        file = usual
    if file is not None:
        for name, value in _flatten(_read_toml(file), ServerConfig):
            layers[name], origins[name] = value, str(file)
    ignored: list[str] = []
    for variable, text in environ.items():
        before, prefix, word = variable.partition("TIDEGATE_")
        if before or not prefix:
            continue
        known = _environment_name(word)
        if known is None:
            ignored += [variable] if word not in ("ADMIN_TOKEN", "ADMIN_URL", "DATA") else []
            continue
        try:
            layers[known] = _environment_value(known, text)
        except tomllib.TOMLDecodeError as error:
            faults.append(f"{variable}: {text!r} cannot be read: {error}.")
        origins[known] = f"environment {variable}"
    for name, flag in flags.items():
        layers[name], origins[name] = flag.value, f"flag {flag.name}"
    raw: dict[str, Any] = {}
    for name, value in layers.items():
        try:
            _place(raw, name, _with_units(name, value))
        except ProtocolError as error:
            faults.append(f"{name} ({origins[name]}): {error}")
    _reserve_a_sixth(raw, origins)
    if not faults:
        try:
            return LoadedConfig(ServerConfig.model_validate(raw), origins, file, tuple(ignored))
        except ValidationError as error:
            faults = [_sentence(fault, origins) for fault in error.errors()]
    raise ConfigError(faults)


def field_of(name: str) -> FieldInfo | None:
    """The schema's field for a dotted name such as `admission.slots`."""
    model: type[BaseModel] = ServerConfig
    found: FieldInfo | None = None
    for part in name.split("."):
        found = model.model_fields.get(part)
        if found is None:
            return None
        if isinstance(found.annotation, type) and issubclass(found.annotation, BaseModel):
            model = found.annotation
    return found


def setting_names(model: type[BaseModel] = ServerConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings, in the schema's order."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_names(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def value_of(config: ServerConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{file} cannot be read: {error.strerror}."]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} is not valid TOML: {error}."]) from error


def _flatten(
    table: Mapping[str, Any], model: type[BaseModel], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        field = model.model_fields.get(key)
        inner = field.annotation if field is not None else None
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _flatten(value, inner, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _reserve_a_sixth(raw: dict[str, Any], origins: dict[str, str]) -> None:
    """Where only the slots are set, a sixth of them is reserved, at most the default."""
    admission = raw.get("admission")
    if not isinstance(admission, dict) or "reserve_small" in admission:
        return
    try:
        slots = int(admission["slots"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return
    most = PolicySettings.model_fields["reserve_small"].default
    admission["reserve_small"] = min(most, max(slots // 6, 1 if slots > 1 else 0))
    origins["admission.reserve_small"] = "default, a sixth of the slots"


def _place(raw: dict[str, Any], name: str, value: Any) -> None:
    *sections, key = name.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
    raw[key] = value


def _environment_name(word: str) -> str | None:
    """The setting of the variable TIDEGATE_`word`."""
    name = word.lower().replace("__", ".")
    if field_of(name) is None:
        # Short names for settings of this section, as the flags have.
        full = "small_below_bytes" if name == "small_below" else name
        name = f"admission.{full}" if full in PolicySettings.model_fields else name
    return name if name in set(setting_names()) else None


def _environment_value(name: str, text: str) -> Any:
    field = field_of(name)
    assert field is not None
    # A line's pattern begins with a brace, too, and is no table.
    if text[:1] in ("[", "{") and field.annotation is not str:
        return tomllib.loads(f"value = {text}")["value"]
    if typing.get_origin(field.annotation) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _with_units(name: str, value: Any) -> Any:
    field = field_of(name)
    if field is None:
        return value
    if isinstance(value, str):
        return read_text(name, field, value)
    is_rate = unit_of(field.json_schema_extra) == "bytes/s" and not name.endswith("_bytes_s")
    if is_rate and isinstance(value, int | float) and not isinstance(value, bool):
        # Refused, as half the world means bits.
        return parse_rate(f"{value:g}")
    return value


def _sentence(fault: Any, origins: Mapping[str, str]) -> str:
    place = [str(part) for part in fault["loc"]]
    name = ".".join(place)
    origin = next(
        (
            origins[candidate]
            for end in range(len(place), 0, -1)
            if (candidate := ".".join(place[:end])) in origins
        ),
        None,
    )
    if origin is None and name:
        # A fault between several settings of a section: wherever any of them came from.
        below = {origin for key, origin in origins.items() if key.startswith(f"{name}.")}
        origin = ", ".join(sorted(below)) or None
    if fault["type"] == "extra_forbidden":
        text = "there is no such setting"
        meant = _meant(name)
        if meant is not None:
            text += f"; did you mean {meant}?"
    else:
        field = field_of(name)
        text = fault_text(fault, one_line(field.description if field is not None else None))
        text = text[:1].lower() + text[1:]
        given = fault["input"]
        hidden = name.endswith("secret")
        if isinstance(given, str | int | float) and repr(given) not in text and not hidden:
            shown = without_password(given) if isinstance(given, str) else given
            text += f" (it is {shown!r})"
    where = f" ({origin})" if origin else ""
    return f"{name or 'configuration'}{where}: {text}{'' if text.endswith('?') else '.'}"


def _meant(name: str) -> str | None:
    """The setting that is most likely meant: the same name in a section, or a similar one."""
    names = list(setting_names())
    own = name.rpartition(".")[2]
    for known in names:
        if known.rpartition(".")[2] == own:
            return known
    import difflib

    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.8)), None)


def without_password(text: str) -> str:
    """A value for a screen or a log: an address without its passwords, other text as it is."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return text.partition("://")[0] + "://***"
    place = parts.netloc
    if parts.password is not None:
        user, _, host = place.rpartition("@")
        place = f"{user.partition(':')[0]}:***@{host}"
    query = "&".join(
        f"{name}=***" if "password" in name.lower() else pair
        for pair in parts.query.split("&")
        for name in [pair.partition("=")[0]]
    )
    # `urlunsplit` would take two of the four slashes of `sqlite:////var/…`.
    path = f"{parts.path}?{query}" if query else parts.path
    return f"{parts.scheme}://{place}{path}"
