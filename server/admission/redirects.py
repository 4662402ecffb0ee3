"""A client that waits is sent to the address that it asked for, again: silence ends in a redirect.

A proxy passes no part of a header before the whole has come, so header lines do not keep a program
alive behind one. Many programs follow a redirect, and their patience begins anew with each. The
ticket stands in the query, and how many redirects there were.
"""

from __future__ import annotations

import re

from ..http.request import Request
from .client_keys import TICKET_FIELD

_HOP = b"tidegate-redirects"
_HOPS = re.compile(rb"(?:^|&)%b=([0-9]{1,4})(?:&|$)" % _HOP)


def redirects_of(query: bytes) -> int:
    """How many redirects of ours a request with this query has behind it."""
    found = _HOPS.search(query)
    return int(found[1]) if found is not None else 0


def send_on(request: Request, token: str | None) -> None:
    """Redirect to the same file, with this ticket."""
    own = (b"%b=" % TICKET_FIELD, b"%b=" % _HOP)
    items = [item for item in request.query.split(b"&") if item and not item.startswith(own)]
    if token is not None:
        items.append(b"%b=%b" % (TICKET_FIELD, token.encode("ascii")))
    items.append(b"%b=%d" % (_HOP, redirects_of(request.query) + 1))
    # Not relative to the path: apt does not understand that.
    location = b"%b?%b" % (request.path, b"&".join(items))
    request.respond(302, [(b"Location", location), (b"Cache-Control", b"no-store")])
