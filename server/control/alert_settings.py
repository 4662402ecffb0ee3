"""Where alerts are sent: settings that every start reads."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class AlertSettings(BaseModel):
    """Who is told when a rule fires."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    to: tuple[str, ...] = Field((), max_length=10)
    """Where alerts are sent: https://… gets them as JSON, ntfy:https://SERVER/TOPIC as ntfy has
    them, mailto:ADDRESS as e-mail."""
    mail_server: str | None = None
    """The server that takes the e-mail: smtp://USER:PASSWORD@HOST:587 (with STARTTLS) or
    smtps://…."""
    mail_from: str = Field("tidegate@localhost", min_length=3, max_length=254)
    """The sender of the e-mail."""

    @field_validator("to")
    @classmethod
    def _places(cls, places: tuple[str, ...]) -> tuple[str, ...]:
        for place in places:
            AlertPlace.of(place)
        return places

    @field_validator("mail_server")
    @classmethod
    def _server(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
                raise ValueError("mail_server is smtp://HOST:PORT or smtps://HOST:PORT")
            _ = parts.port
        return url

    @model_validator(mode="after")
    def _agree(self) -> AlertSettings:
        if self.mail_server is None and any(one.startswith("mailto:") for one in self.to):
            raise ValueError("alerts by e-mail need mail_server")
        return self

    def ports(self) -> frozenset[int]:
        """The TCP ports to which messages go."""
        places = map(AlertPlace.of, self.to)
        return frozenset(port_of(one.url or str(self.mail_server)) for one in places)


def port_of(url: str) -> int:
    parts = urlsplit(url)
    # Of a mail server: submission, and submission over TLS (RFC 8314).
    return parts.port or {"http": 80, "https": 443, "smtp": 587, "smtps": 465}[parts.scheme]


@dataclass(frozen=True, slots=True)
class AlertPlace:
    """One place of `AlertSettings.to`; `url` is empty for e-mail."""

    kind: str
    url: str = ""
    address: str = ""
    topic: str = ""

    @classmethod
    def of(cls, place: str) -> AlertPlace:
        """Read a place; raises ValueError saying how to write it."""
        if place.startswith("mailto:"):
            name, at, host = place.removeprefix("mailto:").partition("@")
            if not (name and at and host) or any(ord(one) <= 32 for one in place):
                raise ValueError(f"{place!r} is not mailto:NAME@HOST")
            return cls("mail", address=f"{name}@{host}")
        url = place.removeprefix("ntfy:")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
            raise ValueError(f"{place!r} is not https://…, ntfy:https://SERVER/TOPIC or mailto:…")
        _ = parts.port
        if not place.startswith("ntfy:"):
            return cls("webhook", url=url)
        root, _, topic = parts.path.rpartition("/")
        if not topic:
            raise ValueError(f"{place!r} names no topic: ntfy:https://SERVER/TOPIC")
        return cls("ntfy", url=f"{parts.scheme}://{parts.netloc}{root}/", topic=topic)

    @property
    def shown(self) -> str:
        """The place without what may be a secret in it."""
        return f"{self.kind} {self.address or urlsplit(self.url).hostname}"
