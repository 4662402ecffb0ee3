"""What several operations take: bounded numbers, texts, times, pages of lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
)

from ...protocol.units import BadUnit, parse_duration
from .render import read_time

T = TypeVar("T")
_BIG = 2**53 - 1
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def _one_line(text: str) -> str:
    if _CONTROLS.search(text):
        raise ValueError("Write one line, without control characters.")
    return text


def _line_ends(text: Any) -> Any:
    """Browsers end lines with CR LF."""
    return text.replace("\r\n", "\n") if isinstance(text, str) else text


def _several_lines(text: str) -> str:
    if _CONTROLS.search(text.translate({ord("\n"): None, ord("\t"): None})):
        raise ValueError("Control characters other than line breaks and tabs cannot be shown.")
    return text


#: Free text as people write it, without the control characters that no page should show.
Text = Annotated[
    str,
    AfterValidator(_one_line),
    Field(json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f]*$"}),
]
#: The same on as many lines as one likes.
Lines = Annotated[
    str,
    BeforeValidator(_line_ends),
    AfterValidator(_several_lines),
    Field(json_schema_extra={"pattern": r"^[^\x00-\x08\x0b-\x1f\x7f]*$"}),
]

Search = Annotated[Text, Field(max_length=128, description="Only entries that contain this text.")]
Offset = Annotated[int, Field(ge=0, le=10_000_000, description="Skip this many.")]
Limit = Annotated[int, Field(ge=1, le=500, description="At most this many.")]
Before = Annotated[int | None, Field(ge=0, le=_BIG, description="Only older than this number.")]
Key = Annotated[str, Field(min_length=1, max_length=80, description="The key.")]


def _typed_time(value: Any, given: ValidationInfo) -> Any:
    """A form says a time as `datetime-local` does, in the person's zone (the context)."""
    if given.context is None or not isinstance(value, str):
        return value
    try:
        return read_time(value, given.context)
    except ValueError:
        raise ValueError("Write a time like 2030-01-31T12:00.") from None


def _typed_span(value: Any, given: ValidationInfo) -> Any:
    """A form says a duration as the command line does: 90s, 15m or 7d."""
    if given.context is None or not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except BadUnit as fault:
        raise ValueError(str(fault)) from None


#: What makes wall time (seconds) of a form's field, and a duration (seconds).
AsTime = BeforeValidator(_typed_time)
AsSpan = BeforeValidator(_typed_span)
#: Wall time, seconds; None: never.
Hour = Annotated[float | None, Field(ge=0, le=4e9), AsTime]


class Shape(BaseModel):
    """All documents: unknown fields are refused, and what the domain gives is read as it is."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


def of_fields(
    name: str, parts: Iterable[type], without: Callable[[str], bool], **more: Any
) -> type[Shape]:
    """A document with the fields of these dataclasses, and `more`: it falls behind none of them."""
    known = {n: k for part in parts for n, k in get_type_hints(part).items() if not without(n)}
    fields: dict[str, Any] = {n: (kind, ...) for n, kind in (known | more).items()}
    return create_model(name, __base__=Shape, **fields)


class NumberPath(Shape):
    number: int = Field(ge=0, le=_BIG, description="The number.")


class SerialPath(Shape):
    serial: str = Field(min_length=1, max_length=80, description="The serial.")


class KeyPath(Shape):
    key: Key


class ListQuery(Shape):
    q: Search = ""
    offset: Offset = 0
    limit: Limit = 50

    def page(self, rows: Sequence[T]) -> Sequence[T]:
        return rows[self.offset : self.offset + self.limit]


class BeforeQuery(Shape):
    before: Before = None
    limit: Limit = 50
