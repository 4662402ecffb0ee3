"""What the JSON API takes and gives of files, rules, preference tickets and the waiting page."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server.admin.acts import CLASS_MAX, LOGO_MAX_BYTES
from server.admin.schema import ListQuery, Shape, Text


class PathQuery(Shape):
    path: str = Field(min_length=1, max_length=1024, description="The rule's pattern.")


class FileQuery(ListQuery):
    sort: Literal["path", "popular", "bytes", "size"] = Field("path", description="The order.")


class FileOut(Shape):
    path: str
    size_bytes: int
    modified_s: float
    sha256: str | None
    digest_state: str
    downloads: int
    sent_bytes: int


class FilesOut(Shape):
    total: int
    files: list[FileOut]


class RuleIn(Shape):
    path: str = Field(
        max_length=1024,
        pattern=r"^/[^\x00-\x1f\x7f]*$",
        description="A pattern with * and ?; it starts with a slash.",
    )
    require_class: Text = Field("", max_length=CLASS_MAX)
    treat_as: Literal["", "small", "large"] = ""
    multicast: bool | None = None
    hidden_until_s: float | None = Field(None, ge=0, le=4e9)
    prequeue_from_s: float | None = Field(None, ge=0, le=4e9)
    note: Text = Field("", max_length=200)


class RulesOut(Shape):
    rules: list[RuleIn]


class PrequeueOut(Shape):
    path: str
    opens_s: float
    entered: int
    commitment: str
    seed: str | None
    audit_url: str


class PrequeuesOut(Shape):
    prequeues: list[PrequeueOut]


class PassesIn(Shape):
    count: int = Field(1, ge=1, le=10_000)
    kind: str = Field(min_length=1, max_length=64, description="A class of the policy's weights.")
    path: Text = Field("*", min_length=1, max_length=1024)
    not_before_s: float | None = Field(None, ge=0, le=4e9, description="Null: from now.")
    expires_s: float = Field(gt=0, le=4e9)
    max_uses: int = Field(1, ge=1, le=1_000_000)
    note: Text = Field("", max_length=200)


class PassOut(Shape):
    serial: str
    kind: str
    weight: float
    path: str
    not_before_s: float
    expires_s: float
    max_uses: int
    used: int
    revoked: bool
    issued_s: float
    who: str
    note: str
    token: str | None = Field(None, description="Only in the answer that issues it.")


class PassesOut(Shape):
    total: int
    passes: list[PassOut]


class LookIn(Shape):
    """The operator's words and logo; a logo that is left out (null) stays as it is."""

    title: Text = Field("", max_length=120)
    text: str = Field("", max_length=2000)
    logo_base64: str | None = Field(
        None,
        max_length=LOGO_MAX_BYTES * 4 // 3 + 4,
        description="A PNG, JPEG or WebP in base 64; an empty text removes it.",
    )


class LookOut(Shape):
    title: str
    text: str
    logo_type: str
    logo_bytes: int


class LookQuery(Shape):
    state: Literal["waiting", "ready", "closed", "pre-queue"] = Field(
        "waiting", description="What the visitor's turn is."
    )
    lang: Literal["en", "de"] = Field("en", description="The visitor's language.")
