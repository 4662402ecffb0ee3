"""What several operations take: bounded numbers, texts, pages of lists."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_BIG = 2**53 - 1
#: Free text as people write it, without the control characters that no page should show.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]


Search = Annotated[str, Field(max_length=128, description="Only what contains this.")]
Offset = Annotated[int, Field(ge=0, le=10_000_000, description="Skip so many.")]
Limit = Annotated[int, Field(ge=1, le=500, description="At most so many.")]
Before = Annotated[int | None, Field(ge=0, le=_BIG, description="Only older than this number.")]
Key = Annotated[str, Field(min_length=1, max_length=80, description="The key.")]
#: Wall time, seconds; None: never.
Hour = Annotated[float | None, Field(ge=0, le=4e9)]


class Shape(BaseModel):
    """All documents: unknown fields are refused, and what the domain gives is read as it is."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


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


class BeforeQuery(Shape):
    before: Before = None
    limit: Limit = 50
