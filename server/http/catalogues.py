"""What pages need of one language: phrases, numbers, dates, units and direction.

`make catalogues` writes `templates/locales/LANGUAGE.json` from the gettext catalogues beside it and
from Unicode's CLDR, so that a server needs no locale library.
"""

from __future__ import annotations

import datetime
import functools
import gettext
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import templates

FOLDER = Path(templates.__file__).parent / "locales"


@dataclass(frozen=True, slots=True)
class LanguageData:
    """One language."""

    #: What the language calls itself.
    name: str
    #: `ltr` or `rtl`.
    direction: str
    #: Stands between groups of three digits.
    group_separator: str
    #: A day in the fields of CLDR: `{d} {MMM} {y}`.
    date_pattern: str
    #: Abbreviated names, January first.
    months: Sequence[str]
    #: From a count to the index of its plural form.
    plural_form: Callable[[int], int]
    #: Unit of `split_duration` -> its text for each plural form, with `{0}` for the number.
    units: Mapping[str, Sequence[str]]
    #: Name of a phrase -> its text. English has none: its phrases are in `phrases`.
    phrases: Mapping[str, str]

    def number(self, value: int) -> str:
        """A whole number that is not negative, grouped: 1,234 or 1.234."""
        return f"{value:,}".replace(",", self.group_separator)

    def date(self, day: datetime.date) -> str:
        """A day: 22 Nov 2026."""
        return self.date_pattern.format(
            d=day.day,
            dd=f"{day.day:02}",
            M=day.month,
            MM=f"{day.month:02}",
            MMM=self.months[day.month - 1],
            y=day.year,
        )

    def duration(self, count: int, unit: str) -> str:
        """A count of one unit of `split_duration`: 14 min."""
        return self.units[unit][self.plural_form(count)].format(self.number(count))


@functools.cache
def load_language(language: str) -> LanguageData:
    """The data of one of `phrases.LANGUAGES`."""
    data = json.loads((FOLDER / f"{language}.json").read_bytes())
    return LanguageData(**data | {"plural_form": gettext.c2py(data["plural_form"])})
