"""Problem documents (RFC 9457), and the table of all codes.

The type of a problem is the relative reference `/-/problems/CODE`, which is valid under every host
name. The server shows this table there.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

BASE = "/-/problems/"
MEDIA_TYPE = "application/problem+json"

#: Code -> what happened, and what to do about it.
PROBLEMS: Mapping[str, str] = {
    # The request itself.
    "bad-request": "The request breaks a rule of HTTP. Correct the program that sent it.",
    "bad-target": (
        "The request target is no path of this server. Percent-encode what is no URL character."
    ),
    "target-too-long": "The request target is longer than 8 KiB.",
    "bad-host": "An HTTP/1.1 request needs exactly one valid Host field.",
    "bad-header": "A header field cannot be read, or holds what it must not.",
    "header-too-large": "The request's header is larger than 32 KiB or has more than 100 fields.",
    "bad-transfer-encoding": "The only transfer coding here is chunked, and only in HTTP/1.1.",
    "body-too-large": "The request's body is larger than this server takes.",
    "expectation-failed": "The only expectation that can be met is 100-continue.",
    "request-timeout": "The request did not arrive in time. Send it again.",
    "http-version": "This server speaks HTTP/1.1 and HTTP/1.0.",
    "unknown-method": "The method is not known here; use GET or HEAD.",
    "method-not-allowed": "The method is not possible for this target; Allow names those that are.",
    "tls-on-plain-port": "This port speaks plain HTTP; use http://, or the server's https:// port.",
    # Files.
    "moved": "The folder's address ends with a slash; Location has it.",
    "not-found": "There is nothing under this name, or nothing that you may see.",
    "precondition-failed": (
        "The file is not the one that the request's conditions name. Fetch it anew."
    ),
    "range-not-satisfiable": (
        "No requested range lies inside the file; Content-Range names its size."
    ),
    "file-changing": "The file is being written at this moment. Ask again soon.",
    "unreadable": "The disk that holds the file fails. Use another mirror, or ask again later.",
    "digest-pending": "The digests are being computed. Ask again when Retry-After says so.",
    "overloaded": (
        "The server is short of files, memory or time. Ask again when Retry-After says so."
    ),
    "internal-error": "The server failed and logged why. Ask again, or tell its operator.",
    # Admission.
    "waiting": (
        "Every slot is taken. Come back when Retry-After says, with the ticket: it keeps your "
        "place."
    ),
    "closed": (
        "The server is being stopped or restarted, or its doors are closed. Come back when "
        "Retry-After says."
    ),
    "no-leader": (
        "The process that keeps the queue is being restarted; every place is kept. Ask again when "
        "Retry-After says so."
    ),
    "blocked": "The operator has blocked this address.",
    "pass-required": (
        "This file needs a priority pass of a class. Ask who runs this server for one."
    ),
    "withdrawn": "The operator has ended this wait or download.",
    "bad-ticket": "The ticket or pass is forged, damaged, or not for this server. Ask without it.",
    "ticket-forged": "The ticket was not issued by this server, or it is damaged. Ask without it.",
    "pass-forged": "The pass was not issued by this server, or it is damaged.",
    "origin-away": "The server cannot ask the place where the file lies. Come back soon.",
    "redirect-needed": "The file lies at another place. Ask with a program that follows redirects.",
    "pass-early": "The pass is not valid yet.",
    "pass-expired": "The pass has expired. Ask who gave it for another.",
    "pass-path": "The pass is for other files.",
    "pass-used": "The pass has been used as often as it allows.",
    "pass-revoked": "The operator has revoked this priority pass. Ask for another one.",
    "ticket-expired": "The ticket's turn has passed unclaimed. Ask without it for a new place.",
    "ticket-used": "The ticket has been used. Ask without it for a new place.",
    "ticket-foreign": "The ticket belongs to another file or another visitor. Ask without it.",
    "too-many-connections": "There are more connections than one download or one address may have.",
    "network-busy": "The network has had more than its share while others wait. Come back later.",
    "too-many-tickets": "The queue holds as many tickets of this visitor, or in all, as it can.",
    # Multicast, mirrors.
    "no-such-session": (
        "There is no such multicast session, or it has ended. Fetch the file by HTTP."
    ),
    "bad-repair": "A repair request names a member and byte ranges inside the file.",
    "too-much-repair": (
        "This is more than repair is for. Fetch the rest as ranges of the file itself."
    ),
    "no-channel": "There is no mirror channel of this name here.",
    # Values, in requests and settings.
    "bad-unit": (
        "A size, rate or duration cannot be read. Write it with its unit, as 40Mbit or 10s."
    ),
    "bad-manifest": "A manifest or an update cannot be read or trusted.",
    # Administration.
    "log-in-first": "Log in, or send a token that is in force.",
    "not-allowed": "Your role, or your token's, does not allow this.",
    "conflict": "This contradicts what is in force now; read it again.",
    "condition-required": "Send If-Match with the ETag of what you have read.",
    "unsupported-media-type": "The body must be JSON, or a form.",
    "too-many-tries": "There were too many tries. Wait as long as Retry-After says.",
    "not-available-now": "The server cannot answer this now. Ask again later.",
    "server-fault": "The page failed and the log says why. Ask again, or tell the operator.",
    "scope": "This needs a role, or a token with a scope, that may do it.",
    "logins-busy": "Too many people log in at this moment. Try again in a few seconds.",
    "too-many-bodies": "As many large forms as are taken at once are on their way. Try again soon.",
    "bad-form": "The form cannot be read, or has more fields than any form of this server.",
    "password-change": "The first password has to be changed before anything else.",
    "cross-site": "The request came from another site's page. Load the page here and try again.",
    "form-token": "The form is out of date. Load the page again.",
    "stale-settings": (
        "The settings were changed meanwhile. Read them again before you change them."
    ),
    "store-silent": "The database does not answer. Downloads go on; ask again later.",
    "not-stored": "The change holds, but the database takes no writes: it is lost if the server is "
    "started anew before it does. Make it again later.",
    "no-arrivals": "Too few clients have come within the last hour to compare policies by them.",
    "invalid-value": "A value breaks its bounds; `errors` names each field with them.",
}


def type_of(code: str) -> str:
    return BASE + code


_encode = msgspec.json.Encoder().encode


def document(status: int, code: str, detail: str, **members: Any) -> bytes:
    """A problem document. `code` is one of `PROBLEMS`; `detail` is one sentence for people."""
    found: dict[str, Any] = {
        "type": type_of(code),
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    return _encode(found) + b"\n"


def explanation(code: str = "") -> str | None:
    """The HTML rows that explain one code, or all codes; None for an unknown code."""
    if code and code not in PROBLEMS:
        return None
    chosen = {code: PROBLEMS[code]} if code else PROBLEMS
    rows = "".join(
        f'<dt id="{name}"><a href="{BASE}{name}"><code>{name}</code></a></dt>'
        f"<dd>{html.escape(text)}</dd>"
        for name, text in sorted(chosen.items())
    )
    return f"<dl>{rows}</dl>"
