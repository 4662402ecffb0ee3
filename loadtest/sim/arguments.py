"""What the command line of the simulator reads of its options; each fault names the option."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ...policies.settings import PolicySettings, read_text
from ...protocol.errors import ProtocolError
from ...protocol.units import parse_duration, parse_rate, parse_size
from ..registry import find_workload
from .conditions import NetworkPath


class ReadParam(click.ParamType[Any]):
    """A text that `read` understands; what it raises is told with the option's name."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            return self._read(str(value))
        except (OSError, ValueError, ProtocolError) as error:
            self.fail(str(error), param, ctx)


def _workload(name: str) -> str:
    find_workload(name, 0)
    return name


def _come_back(text: str) -> float | None:
    """Seconds, or None for `eta`: the policy estimates."""
    if text == "eta":
        return None
    with contextlib.suppress(ValueError):
        return PolicySettings(come_back_s=float(text)).come_back_s
    raise ValueError(f"{text!r} is neither 'eta' nor seconds up to a day")


COME_BACK = ReadParam("come-back", _come_back)
WORKLOAD = ReadParam("workload", _workload)
DURATION = ReadParam("duration", parse_duration)
RATE = ReadParam("rate", lambda text: float(parse_rate(text)))


def read_weights(given: Sequence[str]) -> list[tuple[str, float]]:
    """`--weight PATTERN=N`, as often as it was given."""
    found = []
    for text in given:
        pattern, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not equals or not pattern or not 0 <= weight < math.inf:
            raise click.BadParameter(
                f"{text!r} is not PATTERN=NUMBER, such as '*.iso=10'", param_hint="--weight"
            )
        found.append((pattern, weight))
    return found


def read_network(rtt: str | None, router_queue: str | None) -> NetworkPath | None:
    """`--rtt` and `--router-queue`; None without a round-trip time."""
    if rtt is None:
        if router_queue is not None:
            raise click.BadParameter("needs --rtt", param_hint="--router-queue")
        return None
    try:
        rtt_s = tuple(parse_duration(part) for part in rtt.split(","))
        queue_bytes = 0 if router_queue is None else parse_size(router_queue)
    except ProtocolError as error:
        raise click.BadParameter(str(error), param_hint="--rtt, --router-queue") from error
    if min(rtt_s) <= 0.0:
        raise click.BadParameter("a round-trip time is above 0", param_hint="--rtt")
    return NetworkPath(rtt_s, queue_bytes)


def read_settings(overrides: Sequence[str]) -> Mapping[str, Any]:
    """`--setting NAME=VALUE`, as often as it was given."""
    values: dict[str, Any] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or name not in PolicySettings.model_fields:
            known = ", ".join(sorted(PolicySettings.model_fields))
            raise click.BadParameter(
                f"{override!r} is not NAME=VALUE of a policy setting; there are {known}",
                param_hint="--setting",
            )
        try:
            # A table has no unit, and JSON is how a command line writes one.
            is_table = text[:1] == "{"
            field = PolicySettings.model_fields[name]
            values[name] = json.loads(text) if is_table else read_text(name, field, text)
        except (ValueError, ProtocolError) as fault:
            raise click.BadParameter(f"{name}: {fault}", param_hint="--setting") from None
    return values
