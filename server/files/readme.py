"""A folder's README as a part of its page: Markdown without HTML, or plain text."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

#: Names that count, best first, in lower case.
READMES = (b"readme.md", b"readme.markdown", b"readme.txt", b"readme")
MOST_README_BYTES = 64 * 1024


# Rendered texts that are kept: a page costs 30 ms for 64 KiB, and 1 s for the worst of texts.
@lru_cache(maxsize=16)
def render_readme(name: bytes, text: str) -> Markup:
    """HTML for a README of this name; whatever it says, it runs and embeds nothing."""
    if name.endswith((b".md", b".markdown")):
        # The renderer escapes all text, and takes no address but of the web and of mail.
        return Markup(_markdown().render(text))
    return Markup("<pre>{}</pre>").format(escape(text))


@cache
def _markdown() -> MarkdownIt:
    # Loaded where a folder has one.
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")

    def one_down(state: object) -> None:
        for token in state.tokens:  # type: ignore[attr-defined]
            if token.type in ("heading_open", "heading_close"):
                # The page has a heading of its own.
                token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
            elif token.type in ("th_open", "td_open") and "style" in token.attrs:
                # The page's policy takes no style but of its own files.
                del token.attrs["style"]

    reader.core.ruler.push("one_down", one_down)
    return reader
