"""The waiting page: the operator's own words and logo, and how visitors see it in every state."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..accounts.accounts import Scope
from ..control.branding import LOGO_MAX_BYTES, STATES, Look, picture_type
from ..control.problems import Problem, wrong
from ..http.phrases import LANGUAGES, Phrases
from .app import HandlerCall
from .router import Operations, PageRoutes
from .shapes import Lines, Shape, Text
from .web import Answer, html

api = Operations("release", Scope.FILES)
pages = PageRoutes(Scope.FILES)


class LookIn(Shape):
    """The operator's words and logo; a logo that is left out (null) stays as it is."""

    title: Text = Field("", max_length=120)
    text: Lines = Field("", max_length=2000)
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


def _known_language(language: str) -> str:
    if language not in LANGUAGES:
        raise ValueError(f"there are {', '.join(LANGUAGES)}")
    return language


class LookQuery(Shape):
    state: Literal["waiting", "ready", "closed", "pre-queue"] = Field(
        "waiting", description="What the visitor's turn is."
    )
    lang: Annotated[str, AfterValidator(_known_language)] = Field(
        "en",
        description="The visitor's language.",
        json_schema_extra={"enum": list(LANGUAGES)},
    )


def change(ask: HandlerCall, title: str, text: str, logo: bytes | None) -> Look:
    """Change the waiting page; a `logo` of None stays, an empty one is removed."""
    old = ask.server.branding.look
    kind = old.logo_type
    if logo:
        kind = picture_type(logo)
        if not kind or len(logo) > LOGO_MAX_BYTES:
            most = LOGO_MAX_BYTES // 1024
            raise wrong("logo", f"The logo is a PNG, JPEG or WebP of at most {most} KiB.")
    elif logo is not None:
        kind = ""
    look = Look(title, text, old.logo if logo is None else logo, kind)
    ask.server.branding.change(look)
    ask.log("waiting-page", "changed the waiting page's look")
    return look


@api.get("/waiting-page")
async def get_waiting_page(ask: HandlerCall) -> LookOut:
    """The operator's words."""
    return LookOut.model_validate(ask.server.branding.look)


@api.put("/waiting-page")
async def put_waiting_page(ask: HandlerCall, body: LookIn) -> LookOut:
    """Change the words."""
    logo = None
    if body.logo_base64 is not None:
        try:
            logo = base64.b64decode(body.logo_base64, validate=True)
        except ValueError:
            raise wrong("logo_base64", "This is not base 64.") from None
    return LookOut.model_validate(change(ask, body.title, body.text, logo))


@api.get("/waiting-page/preview", media="text/html")
@pages.get("/waiting/preview")
async def preview_waiting_page(ask: HandlerCall, query: LookQuery) -> Answer:
    """The page as visitors see it."""
    return html(ask.server.branding.preview(query.state, query.lang))


@pages.get("/waiting")
async def waiting(ask: HandlerCall, query: LookQuery) -> Answer:
    """Every state, and the form."""
    return ask.page(
        "waiting.html",
        look=ask.server.branding.look,
        states=list(STATES),
        state=query.state,
        language=query.lang,
        languages=[(one, Phrases(one).name) for one in LANGUAGES],
    )


@pages.post("/waiting", then="/waiting", again=waiting)
async def waiting_save(ask: HandlerCall, body: LookIn) -> None:
    """Keep the words and the logo."""
    given = ask.call.form.get("logo", [b""])[0]
    logo = b"" if ask.call.field("drop_logo") else given or None
    change(ask, body.title, body.text, logo)


@pages.get("/-/logo")
async def logo(ask: HandlerCall) -> Answer:
    """The operator's logo, for the preview."""
    look = ask.server.branding.look
    if not look.logo:
        raise Problem(404, "There is no logo.")
    return Answer(200, look.logo, (("content-type", look.logo_type),))
