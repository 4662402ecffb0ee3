"""The words of the pages that visitors read, by language.

In `templates/locales`, `phrases.pot` has them in English, and gettext catalogues, `LANGUAGE.po`, in
other languages. From these and from Unicode's CLDR `make catalogues` writes `LANGUAGE.json` beside
them, so that a server needs no locale library. A phrase that a catalogue lacks is English.
`Accept-Language` picks (RFC 9110, 12.5.4; RFC 4647, 3.4).
"""

from __future__ import annotations

import datetime
import functools
import gettext
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import templates
from ...protocol.units import format_size, split_duration
from .parsing import weights_of

FOLDER = Path(templates.__file__).parent / "locales"
#: Code of `protocol.problems` -> what a person at a browser is told. Those that are missing are met
#: by programs, or in the administration.
PROBLEMS_FOR_PEOPLE: Mapping[str, str] = {
    "not-found": "problem_404",
    **dict.fromkeys(("bad-target", "target-too-long"), "problem_target"),
    **dict.fromkeys(
        (
            *("bad-request", "bad-header", "bad-host", "bad-transfer-encoding", "body-too-large"),
            *("expectation-failed", "http-version", "unknown-method", "method-not-allowed"),
        ),
        "problem_request",
    ),
    "header-too-large": "problem_cookies",
    "request-timeout": "problem_slow",
    **dict.fromkeys(("precondition-failed", "range-not-satisfiable"), "problem_changed"),
    "file-changing": "problem_changing",
    "unreadable": "problem_disk",
    "digest-pending": "problem_digest",
    "overloaded": "problem_overloaded",
    "internal-error": "problem_internal",
    "closed": "problem_closed",
    "no-leader": "problem_leader",
    "blocked": "problem_blocked",
    **dict.fromkeys(("pass-required", "pass-path"), "problem_pass"),
    "pass-early": "problem_early",
    **dict.fromkeys(
        ("pass-forged", "pass-expired", "pass-used", "pass-revoked"), "problem_bad_pass"
    ),
    "withdrawn": "problem_withdrawn",
    **dict.fromkeys(
        ("bad-ticket", "ticket-forged", "ticket-expired", "ticket-used", "ticket-foreign"),
        "problem_ticket",
    ),
    "too-many-connections": "problem_connections",
    "too-many-tickets": "problem_tickets",
}
#: Languages that pages are written in, as gettext names them (`de`, `zh_TW`).
LANGUAGES: tuple[str, ...] = (
    "en",
    *sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "en"),
)
_BY_TAG: Mapping[str, str] = {name.lower().replace("_", "-"): name for name in LANGUAGES} | {
    # Scripts and regions that Traditional Chinese goes by.
    **dict.fromkeys(("zh-hant", "zh-hk", "zh-mo"), "zh_TW")
}


@functools.cache
def _read_language(language: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{language}.json").read_bytes())
    return data | {"plural_form": gettext.c2py(data["plural_form"])}


class Phrases:
    """The phrases of one of `LANGUAGES`, and how it writes numbers, days and durations."""

    def __init__(self, language: str = "en") -> None:
        self.language = language
        #: As HTML and HTTP name the language (RFC 5646).
        self.tag = language.replace("_", "-")
        self._data = _read_language(language)
        #: What the language calls itself.
        self.name: str = self._data["name"]
        #: How it is written: `ltr` or `rtl`.
        self.direction: str = self._data["direction"]

    def __call__(self, key: str, **values: object) -> str:
        """A phrase with its blanks filled.

        In one that runs from right to left, names and figures keep the order of their own.
        """
        if self.direction == "rtl":
            # Unicode UAX 9, 2.3.
            around = "\N{FIRST STRONG ISOLATE}%s\N{POP DIRECTIONAL ISOLATE}"
            values = {name: around % (value,) for name, value in values.items()}
        return self.plain(key).format(**values)

    def plain(self, key: str) -> str:
        """A phrase with its blanks open, for a script to fill."""
        phrase: str = self._data["phrases"][key]
        return phrase

    def number(self, value: int) -> str:
        """A whole number as this language groups it: 1,234 or 1.234."""
        return f"{value:,}".replace(",", self._data["group_separator"])

    def date(self, unix_s: float) -> str:
        """A day as this language writes it: 22 Nov 2026."""
        day = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
        # In the fields of CLDR, such as `{d} {MMM} {y}`.
        pattern: str = self._data["date_pattern"]
        month = self._data["months"][day.month - 1]
        return pattern.format(
            d=day.day, dd=f"{day:%d}", M=day.month, MM=f"{day:%m}", MMM=month, y=day.year
        )

    def moment(self, unix_s: float) -> str:
        """A day and time of day, UTC, as this language writes it: 22 Nov 2026, 14:05 UTC."""
        moment = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
        return _keep_together(f"{self.date(unix_s)}, {moment:%H:%M} UTC")

    def time(self, duration_s: float) -> str:
        """A duration as this language writes it: 45 sec, 14 min, 2 hr 5 min."""
        units, plural_form = self._data["units"], self._data["plural_form"]
        return " ".join(
            _keep_together(units[unit][plural_form(count)].format(self.number(count)))
            for unit, count in split_duration(duration_s)
        )


# Of a few files, again and again.
@functools.lru_cache(1024)
def told_size(size_bytes: float) -> str:
    """A size as pages tell it, on one line: 1.4 GB."""
    return _keep_together(format_size(size_bytes))


def _keep_together(text: str) -> str:
    """A figure and its unit on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def phrases_for(accept_language: bytes | None) -> Phrases:
    """The best language that a request accepts; English when it accepts none of ours."""
    if not accept_language:
        return _phrases("en")
    # A browser's list is short; a long one is not worth remembering.
    find = _best_language if len(accept_language) <= 200 else _best_language.__wrapped__
    return _phrases(find(accept_language))


@functools.lru_cache(256)
def _best_language(accept_language: bytes) -> str:
    best, best_quality = "en", 0.0
    for tag, quality in weights_of(accept_language).items():
        language = _lookup(tag)
        if language is not None and quality > best_quality:
            best, best_quality = language, quality
    return best


@functools.cache
def _phrases(language: str) -> Phrases:
    return Phrases(language)


def _lookup(tag: str) -> str | None:
    """The longest beginning of a tag that is one of ours (RFC 4647, 3.4)."""
    parts = tag.split("-")[:4]
    for end in range(len(parts), 0, -1):
        found = _BY_TAG.get("-".join(parts[:end]))
        if found is not None:
            return found
    return None
