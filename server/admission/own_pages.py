"""The operator's own waiting pages: a Jinja2 template for each state, in one folder.

A template sees only words and numbers. It is rendered in Jinja2's sandbox, with everything escaped.
If a template fails, the visitor gets the built-in page, and the operator's log says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from twisted.logger import Logger

_log = Logger()
#: The states of a visitor. `waiting` also stands in for a state without a template.
STATES = ("waiting", "ready", "busy", "closed", "pre-queue")
#: The variables of a template, with the values with which templates are tried.
SAMPLE: Mapping[str, Any] = {
    "state": "waiting",
    "language": "en",
    "direction": "ltr",
    "title": "You are number 212 in the queue",
    "lead": "image.iso (1.2 GB) starts downloading by itself, on this page.",
    "heading": "",
    "paragraphs": [],
    "logo_url": "",
    "style_url": "",
    "file": "image.iso",
    "size": "1.2 GB",
    "size_bytes": 1_200_000_000,
    "place": 212,
    "expected": "14 min",
    "latest": "17 min",
    "waited": "2 min",
    "next_visit": "30 s",
    "retry_after_s": 30,
    "mirrors": [],
    "magnet_url": None,
    "metalink_url": None,
}


class BadTemplate(ValueError):
    """A template cannot be used; the message names the file and the fault."""


class OwnPages:
    """The templates of a folder, read when it is made. Raises BadTemplate."""

    def __init__(self, folder: Path | None) -> None:
        self._templates: dict[str, Template] = {}
        self._failed: set[str] = set()
        if folder is None:
            return
        environment = ImmutableSandboxedEnvironment(
            loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined
        )
        if not folder.is_dir():
            raise BadTemplate(f"{folder} is no folder; put templates such as waiting.html there")
        for state in STATES:
            if not (folder / f"{state}.html").is_file():
                continue
            try:
                template = environment.get_template(f"{state}.html")
                absent = ("place", "expected", "latest", "magnet_url", "metalink_url")
                for gaps in ({}, dict.fromkeys(absent)):
                    template.render({**SAMPLE, "state": state, **gaps})
            except (TemplateError, OSError, ValueError, TypeError, ArithmeticError) as fault:
                line = getattr(fault, "lineno", None)
                where = f"{folder / state}.html" + (f", line {line}" if line else "")
                raise BadTemplate(f"{where}: {fault}") from fault
            self._templates[state] = template
        if not self._templates:
            names = ", ".join(f"{state}.html" for state in STATES)
            raise BadTemplate(f"{folder} has none of {names}")

    def __bool__(self) -> bool:
        return bool(self._templates)

    def render(self, values: Mapping[str, Any]) -> bytes | None:
        """The operator's page for `values["state"]`; None: show ours."""
        state = str(values["state"])
        template = self._templates.get(state) or self._templates.get("waiting")
        if template is None:
            return None
        try:
            return template.render(dict(values)).encode("utf-8", "replace")
        except Exception as fault:  # noqa: BLE001 - whatever a template does, the visitor waits on
            if state not in self._failed:
                self._failed.add(state)
                _log.error(
                    "Your waiting page for the state {state} failed and ours is shown: {fault}",
                    state=state,
                    fault=fault,
                )
            return None
