"""What the JSON API takes and gives of API tokens and users."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server.admin.accounts import NAME, PASSWORD_MAX, PASSWORD_MIN
from server.admin.schema import Shape, Text


class TokenIn(Shape):
    label: Text = Field(min_length=1, max_length=64)
    role: Literal["viewer", "operator"] = "viewer"
    days: int | None = Field(90, ge=1, le=3650)


class TokenOut(Shape):
    serial: str
    label: str
    role: str
    owner: str
    created_s: float
    expires_s: float | None
    used_s: float | None
    secret: str | None = Field(None, description="Only in the answer that issues it.")


class TokensOut(Shape):
    tokens: list[TokenOut]


class NamePath(Shape):
    name: str = Field(min_length=1, max_length=64, description="The user's name.")


class UserIn(Shape):
    name: str = Field(pattern=NAME, max_length=64)
    role: Literal["viewer", "operator"] = "viewer"
    password: str = Field(
        min_length=PASSWORD_MIN,
        max_length=PASSWORD_MAX,
        description="For the first login; they must change it then.",
    )


class UserOut(Shape):
    name: str
    role: str
    created_s: float
    must_change: bool
    one_time_codes: bool


class UsersOut(Shape):
    users: list[UserOut]
