"""Settings of a gate: another program sends the files."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

#: Where a gate tells how bodies have ended.
ROUTE = "/-/gate"


class GateSettings(BaseModel):
    """Whether a program in front sends the files, and how it says that it has."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    enabled: bool = Field(
        False,
        description="A program in front, such as nginx, sends the files that this server admits, "
        "see [gate](gate.md).",
    )
    report: str = Field(
        "",
        max_length=200,
        description="Where that program reports the end of a transfer by syslog datagram: "
        "unix:PATH or HOST:PORT (UDP). Empty: beside the first place of `listen`, at PATH.end or "
        "at the same port.",
    )
    claim_s: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="A transfer that the program has not begun after this time gives its slot "
        "back.",
        json_schema_extra={"unit": "s"},
    )


def report_place(report: str, first_listener: str) -> str:
    """Where reports are received, by the setting and the first place of `listen`."""
    if report:
        return report
    if first_listener.startswith("unix:"):
        return f"{first_listener}.end"
    return first_listener


def socket_path(place: str) -> Path | None:
    """The file of a `unix:` place; None for HOST:PORT."""
    return Path(place.removeprefix("unix:")) if place.startswith("unix:") else None
