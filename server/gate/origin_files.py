"""From a request to a file of an origin: what the site does for its own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred

from ..files.response_plans import answer_or_plan
from ..files.transfer import Admission, Representation, Visibility
from ..http.answers import Header
from ..http.request import Request
from .handover import MoverAdmission, MoverStart, one_range_only
from .movers import FETCHING
from .moves import MovedOn
from .origin import OriginStore


@dataclass(frozen=True, slots=True)
class OriginTerms:
    """What the files of an origin are answered with.

    `fields` describes a file. `follows` says whether a client follows a redirect to another host;
    where `redirects`, it gets one, and counts as served at `assumed_bytes_s`.
    """

    visibility: Visibility
    fields: Callable[[Representation, int], list[Header]]
    follows: Callable[[Request], bool]
    wall: Callable[[], float]
    redirects: bool
    assumed_bytes_s: float


class OriginFiles:
    """Answers for files of `origin`; a maker of the site, asked where the directory has none.

    Bodies start through `movers`; those of clients that are sent to the origin through `inner`.
    """

    def __init__(
        self, origin: OriginStore, movers: MoverAdmission, inner: Admission, terms: OriginTerms
    ) -> None:
        self.origin = origin
        self.movers = movers
        self._inner = inner
        self.terms = terms

    def __call__(self, request: Request, parts: list[bytes]) -> bool:
        """Answer, now or when the origin has been asked."""
        if not parts:
            return False
        looked: Deferred[None] = self.origin.look(b"/".join(parts)).addCallback(
            lambda rep: request.answer_by(lambda asked: self._found(asked, rep))
        )
        looked.addErrback(lambda fault: request.answer_by(lambda asked: fault.raiseException()))
        return True

    def _found(self, request: Request, rep: Representation | None) -> None:
        if request.finished:
            return
        look = self.terms.visibility
        if rep is None:
            request.not_found()
        elif look.hidden(rep.url_path):
            if request.method != b"GET" or not look.register(request, rep):
                request.not_found()
        elif not look.turned_away(request, rep.url_path):
            self._serve(request, rep)

    def _serve(self, request: Request, rep: Representation) -> None:
        one_range_only(request)
        now = self.terms.wall()
        mtime_s = min(int(rep.mtime_s), int(now))
        planned = answer_or_plan(request, rep, self.terms.fields(rep, mtime_s), mtime_s, now)
        if planned is None:
            return
        (plan, _), where = planned, self.movers.mover_of(request, rep)
        away = MovedOn("", None, False, assumed_bytes_s=self.terms.assumed_bytes_s)
        start = MoverStart(self.movers, request, rep, plan, away)
        if self.terms.redirects and self.terms.follows(request):
            self._inner.enter(request, rep, replace(plan, held_status=302), start)
        elif where is not None and where.mover in FETCHING:
            self.movers.enter(request, rep, plan, start)
        else:
            request.refuse(
                403,
                "redirect-needed",
                "This file lies at another place, to which only programs are sent that are known "
                "to follow: ask with a browser, wget2, aria2 or `tidegate get`.",
            )
