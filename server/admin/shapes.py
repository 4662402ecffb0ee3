"""What several operations take: bounded numbers, texts, pages of lists."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_BIG = 2**53 - 1
#: Free text as people write it, without the control characters that no page should show.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]


class Shape(BaseModel):
    """All documents: unknown fields are refused, and what the domain gives is read as it is."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class NumberPath(Shape):
    number: int = Field(ge=0, le=_BIG, description="The number.")


class SerialPath(Shape):
    serial: str = Field(min_length=1, max_length=80, description="The serial.")


class KeyPath(Shape):
    key: str = Field(min_length=1, max_length=80, description="The key.")


class ListQuery(Shape):
    q: str = Field("", max_length=128, description="Only what contains this.")
    offset: int = Field(0, ge=0, le=10_000_000, description="Skip so many.")
    limit: int = Field(50, ge=1, le=500, description="At most so many.")


class BeforeQuery(Shape):
    before: int | None = Field(None, ge=0, le=_BIG, description="Only older than this number.")
    limit: int = Field(50, ge=1, le=500, description="At most so many.")
