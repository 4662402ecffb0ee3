"""The waiting page: the operator's words, logo and colour, and how visitors see each state."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import AfterValidator, Field

from ..accounts.accounts import Scope
from ..admission.responses import Words
from ..control.branding import (
    JUDGED_BY,
    LOGO_MAX_BYTES,
    STATES,
    Look,
    colour_of,
    legible,
    picture_type,
    style_of,
)
from ..control.problems import Problem, wrong
from ..http.phrases import LANGUAGES, Phrases
from .app import HandlerCall
from .router import Routes
from .shapes import Lines, Shape, Text
from .web import Answer, html, redirect

api = Routes(Scope.FILES, "release")
pages = Routes(Scope.FILES)


def _known_language(language: str) -> str:
    if language and language not in LANGUAGES:
        raise ValueError(f"there are {', '.join(LANGUAGES)}")
    return language


State = Literal["waiting", "ready", "busy", "closed", "pre-queue"]
Language = Annotated[
    str,
    AfterValidator(_known_language),
    Field(description="The visitor's language.", json_schema_extra={"enum": ["", *LANGUAGES]}),
]
#: The language of a page: English where none is named.
Visitor = Annotated[Language, AfterValidator(lambda language: language or "en")]
Title = Annotated[Text, Field(max_length=120, description="Empty: none of your own.")]
Body = Annotated[
    Lines,
    Field(max_length=2000, description="An empty line starts a paragraph; [words](URL) is a link."),
]
Colour = Annotated[
    str | None,
    AfterValidator(lambda text: colour_of(text) if text else text),
    Field(description="Of links, buttons and bars, such as #0b6e7f; an empty text: ours."),
]


class WordsOut(Shape):
    """A heading and a text for pages of one state and language, or (empty) of all."""

    state: Literal["", "waiting", "ready", "busy", "closed", "pre-queue"] = Field(
        "", description="What the visitor's turn is."
    )
    language: Language = ""
    title: Title = ""
    text: Body = ""


class LookIn(WordsOut):
    """The words of one state and language; a logo or colour that is left out stays as it is."""

    logo_base64: str | None = Field(
        None,
        max_length=LOGO_MAX_BYTES * 4 // 3 + 4,
        description="A PNG, JPEG or WebP in base 64; an empty text removes it.",
    )
    colour: Colour = None


class LookOut(Shape):
    """`title` and `text` stand on all pages for which `words` has none."""

    title: str
    text: str
    words: list[WordsOut]
    colour: str
    logo_type: str
    logo_bytes: int


class LookQuery(Shape):
    state: State = Field("waiting", description="What the visitor's turn is.")
    lang: Visitor = "en"


class WaitingQuery(LookQuery):
    for_state: bool = Field(False, description="The words are for this state only.")
    for_language: bool = Field(False, description="The words are for this language only.")

    @property
    def cell(self) -> tuple[str, str]:
        """The state and the language of the words; empty for all."""
        return self.state if self.for_state else "", self.lang if self.for_language else ""


class Draft(WordsOut):
    """Words and a colour that are tried, and the visitor who is shown them."""

    colour: Colour = ""
    shown_state: State = Field("waiting", description="What the visitor's turn is.")
    shown_language: Visitor = "en"


def change(ask: HandlerCall, body: LookIn, logo: bytes | None) -> Look:
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
    look = replace(
        old.saying(Words(body.state, body.language, body.title, body.text)),
        logo=old.logo if logo is None else logo,
        logo_type=kind,
        colour=old.colour if body.colour is None else body.colour,
    )
    ask.server.branding.change(look)
    ask.log("waiting-page", "changed the waiting page's look")
    return look


def _shown(look: Look) -> LookOut:
    every = look.own_words("", "")
    return LookOut(
        title=every.title,
        text=every.text,
        words=[WordsOut.model_validate(w) for w in look.words if w.state or w.language],
        colour=look.colour,
        logo_type=look.logo_type,
        logo_bytes=look.logo_bytes,
    )


@api.get("/waiting-page")
async def get_waiting_page(ask: HandlerCall) -> LookOut:
    """The operator's words."""
    return _shown(ask.server.branding.look)


@api.put("/waiting-page")
async def put_waiting_page(ask: HandlerCall, body: LookIn) -> LookOut:
    """Change the words of a state and language, the logo or the colour."""
    logo = None
    if body.logo_base64 is not None:
        try:
            logo = base64.b64decode(body.logo_base64, validate=True)
        except ValueError:
            raise wrong("logo_base64", "This is not base 64.") from None
    return _shown(change(ask, body, logo))


@api.get("/waiting-page/preview", media="text/html")
@pages.get("/waiting/preview")
async def preview_waiting_page(ask: HandlerCall, query: LookQuery) -> Answer:
    """The page as visitors see it."""
    return html(ask.server.branding.preview(query.state, query.lang))


@api.post("/waiting-page/preview", media="text/html")
@pages.post("/waiting/preview")
async def try_waiting_page(ask: HandlerCall, body: Draft) -> Answer:
    """The page as visitors would see it with these words and this colour; nothing changes."""
    look = ask.server.branding.look
    look = look.saying(Words(body.state, body.language, body.title, body.text))
    look = replace(look, colour=body.colour or "")
    return html(ask.server.branding.preview(body.shown_state, body.shown_language, look))


@pages.get("/waiting")
async def waiting(ask: HandlerCall, query: WaitingQuery) -> Answer:
    look = ask.server.branding.look
    cells = [
        query.model_copy(update={"for_state": one_state, "for_language": one_language})
        for one_language in (False, True)
        for one_state in (False, True)
    ]
    tones = (
        [("light", JUDGED_BY.light_paper), ("dark", JUDGED_BY.dark_paper)] if look.colour else []
    )
    # Read for the first time, all of them take 8 ms.
    names = await ask.admin.turns.all_of((one, Phrases(one).name) for one in LANGUAGES)
    return ask.page(
        "waiting.html",
        look=look,
        words=look.own_words(*query.cell),
        query=query,
        cells=[(cell, look.own_words(*cell.cell)) for cell in cells],
        tones=[(name, legible(look.colour, paper)) for name, paper in tones],
        states=list(STATES),
        languages=dict(names),
    )


@pages.post("/waiting", again=waiting)
async def waiting_save(ask: HandlerCall, body: LookIn) -> Answer:
    given = ask.call.form.get("logo", [b""])[0]
    logo = b"" if ask.call.field("drop_logo") else given or None
    if body.colour is None and "colour" in ask.call.form:
        body = body.model_copy(update={"colour": ""})
    change(ask, body, logo)
    return redirect("/waiting?" + urlencode(ask.call.query, doseq=True))


@pages.get("/-/logo")
async def logo(ask: HandlerCall) -> Answer:
    """The operator's logo, for the preview."""
    look = ask.server.branding.look
    if not look.logo:
        raise Problem(404, "There is no logo.")
    return Answer(200, look.logo, (("content-type", look.logo_type),))


@pages.get("/-/look")
async def style(ask: HandlerCall) -> Answer:
    """The style sheet of a colour, for the preview."""
    try:
        colour = colour_of("#" + ask.call.arg("colour"))
    except ValueError as fault:
        raise Problem(404, str(fault)) from None
    return Answer(200, style_of(colour).encode(), (("content-type", "text/css; charset=utf-8"),))
