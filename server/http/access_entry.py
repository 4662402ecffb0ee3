"""What the access log knows of a request: what it said of itself, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class AccessRecord(NamedTuple):
    """What a request says of itself. `client` is empty where it is the socket's other end."""

    client: str
    method: bytes
    target: bytes
    version: str
    agent: bytes
    referrer: bytes
    range: bytes
    is_tls: bool
    started_s: float


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """A request that is over. `ended_s` is Unix time; `complete` that its answer left whole."""

    record: AccessRecord
    client: str
    ended_s: float
    duration_s: float
    status: int
    body_bytes: int
    complete: bool
    waited_s: float = 0.0
    priority_class: str = ""
