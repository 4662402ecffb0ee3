"""How each program is kept waiting: pure matching on User-Agent.

Measured with the real programs (docs/clients.md): most lose the file after a 503, and wait while
the server keeps their request open. So the server keeps the requests of unknown programs open.
Browsers obey `Refresh` on the waiting page, `tidegate get` comes back with its ticket.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ...protocol.bounded_table import BoundedTable

Manner = Literal["hold", "come-back"]


class ToolRule(BaseModel):
    """One `[[holding.tools]]` entry: how tools whose User-Agent matches are kept waiting."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    agent: str = Field(min_length=1, max_length=200)
    """Regular expression, looked for in User-Agent without regard to case."""
    manner: Manner
    """`hold` keeps the request open; `come-back` answers 503 with Retry-After."""
    silent_s: float = Field(20.0, ge=0.0, le=3600.0)
    """How long nothing is sent at first (held tools)."""
    drip_s: float = Field(15.0, ge=0.1, le=3600.0)
    """Then one header line is sent each time this passes."""
    drip_lines: int = Field(85, ge=0, le=10_000)
    """After this many lines the connection is closed; a retry finds its place."""

    counts_body: bool = False
    """Whether header lines may not keep it alive, only the file's bytes: under a policy that pauses
    downloads it gets the first of them after a few seconds (held tools)."""
    redirects: int = Field(0, ge=0, le=1000)
    """How many redirects in a row it follows. Where header lines do not reach it (behind a proxy)
    or do not help it, it is sent to the same address again, with its ticket (held tools)."""
    redirect_s: float = Field(8.0, ge=0.1, le=3600.0)
    """How long nothing is sent before each redirect."""
    obeys_503: bool = False
    """Whether it honours Retry-After: behind a proxy it gets 503 once it follows no more redirects
    (held tools)."""

    @field_validator("agent")
    @classmethod
    def _compiles(cls, agent: str) -> str:
        try:
            re.compile(agent)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return agent


def _impatient(agent: str, *, drip_s: float = 8.0, drip_lines: int = 80, **more: Any) -> ToolRule:
    """A program that gives up after 10 s without a byte, so one comes sooner.

    Many parsers give up beyond 100 header lines in all (Python's, hyper's); the answer has its own.
    """
    return ToolRule(
        agent=agent, manner="hold", silent_s=drip_s, drip_s=drip_s, drip_lines=drip_lines, **more
    )


#: curl, wget, wget2, aria2 and axel took 1 500 header lines of 41 bytes and then the file; wget
#: refuses a header of more than 64 KiB.
_MANY_LINES = 1200
#: Behind a proxy, for programs without a time-out of their own below a minute: proxies have one.
_PATIENT_S = 25.0

#: The measured defaults, first match wins. Rules of the configuration come before them.
DEFAULT_TOOLS: tuple[ToolRule, ...] = (
    # `curl --retry` honours Retry-After, plain curl does not, and their requests look alike:
    # holding serves both. The name may stand behind that of a program that runs curl; busybox says
    # only `Wget`. All bear a minute of silence unless told less. aria2 follows 20 redirects.
    _impatient(
        r"^aria2/", drip_lines=_MANY_LINES, counts_body=True, redirects=19, redirect_s=_PATIENT_S
    ),
    _impatient(r"(^| )(curl|wget|wget2|aria2|axel)(/|$)", drip_lines=_MANY_LINES, counts_body=True),
    ToolRule(agent=r"^Debian APT|^APT-|apt-", manner="hold", redirects=50, redirect_s=_PATIENT_S),
    ToolRule(agent=r"^ZYpp", manner="hold", redirects=5, redirect_s=_PATIENT_S),
    # These count bytes of the body only: header lines do not keep them alive. They give up after
    # 30 s and try again, four times in all, and each try finds the old place.
    ToolRule(
        agent=r"libdnf|librepo",
        manner="hold",
        silent_s=35.0,
        drip_lines=0,
        counts_body=True,
        redirects=5,
        redirect_s=_PATIENT_S,
    ),
    # A redirect does not renew its patience.
    ToolRule(agent=r"^cargo[ /]", manner="hold", silent_s=35.0, drip_lines=0, counts_body=True),
    # The same after 60 s, and once only: libcurl below 30 bytes of the body a second.
    ToolRule(agent=r"^mamba/", manner="hold", silent_s=65.0, drip_lines=0, counts_body=True),
    # The same after 10 s.
    ToolRule(
        agent=r"^pacman/", manner="hold", silent_s=15.0, drip_lines=0, counts_body=True, redirects=9
    ),
    # HttpURLConnection asks for text/html as a browser does, and cannot come back.
    _impatient(r"(^| )Java/[0-9]", redirects=18, redirect_s=_PATIENT_S),
    # pip gives up after 15 s and tries five times more, also after a 503; others as they are told,
    # often after 10 s; httpx after 5 s unless it is told.
    _impatient(r"^pip/", redirects=29, obeys_503=True),
    _impatient(r"^python-requests/", redirects=29),
    _impatient(r"^python-httpx/", drip_s=4.0, drip_lines=_MANY_LINES),
    _impatient(r"^Python-urllib/", redirects=9),
    _impatient(r"^Python/[0-9.]+ aiohttp/", redirects=8),
    # These wait five minutes for a header.
    _impatient(r"^npm/|^node$", redirects=18, redirect_s=_PATIENT_S),
    ToolRule(agent=r"^tidegate/", manner="come-back"),
)


@functools.lru_cache(maxsize=4096)
def for_this_try(rule: ToolRule, by_proxy: bool, hop: int) -> ToolRule:
    """How a request is kept after `hop` redirects.

    `redirects` of the result is 0 unless its silence ends in another redirect.
    """
    reached = rule.drip_lines > 0 and not by_proxy
    if not reached and hop < rule.redirects:
        return rule.model_copy(update={"silent_s": rule.redirect_s, "drip_lines": 0})
    if by_proxy and rule.obeys_503:
        return rule.model_copy(
            update={"silent_s": rule.redirect_s, "drip_lines": 0, "redirects": 0}
        )
    return rule.model_copy(update={"redirects": 0}) if rule.redirects else rule


class ToolTable:
    """Finds the rule for a User-Agent, and remembers it."""

    def __init__(self, rules: Iterable[ToolRule] = (), unknown: Manner = "hold") -> None:
        #: For tools that no rule names.
        self.unknown = _impatient(".").model_copy(update={"manner": unknown})
        tried = (*rules, *DEFAULT_TOOLS)
        self._compiled = [(re.compile(rule.agent, re.IGNORECASE), rule) for rule in tried]
        self._found: BoundedTable[bytes, ToolRule] = BoundedTable(1024)

    def rule_for(self, agent: bytes | None) -> ToolRule:
        """How to keep this tool waiting."""
        agent = (agent or b"")[:256]
        found = self._found.get(agent)
        if found is None:
            text = agent.decode("latin-1")
            found = next(
                (rule for pattern, rule in self._compiled if pattern.search(text)), self.unknown
            )
            self._found[agent] = found
        return found


@functools.lru_cache(1024)
def program_name(agent: bytes) -> str:
    """What operators call the program of a User-Agent, without its version: `curl`, `Firefox`."""
    if agent.startswith(b"Mozilla/"):
        # Chrome's token is in that of most others, and Safari's in Chrome's.
        for browser in ("Firefox", "Edge", "Opera", "Chrome", "Safari"):
            token = {"Edge": "Edg", "Opera": "OPR"}.get(browser, browser)
            if f"{token}/".encode("ascii") in agent:
                return browser
        return "other browser"
    # Its words before the version.
    found = re.match(rb"[A-Za-z][\w.+-]*(?: [A-Za-z][\w.+-]*){0,2}(?=/| [^A-Za-z]|$)", agent[:256])
    return found[0][:32].decode("latin-1") if found else "unknown"
