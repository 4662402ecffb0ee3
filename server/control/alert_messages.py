"""What a webhook, ntfy or a mail server gets, and how it is sent. Loaded with the first message."""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.message import EmailMessage
from http.client import HTTPException, HTTPMessage
from typing import IO, NoReturn
from urllib.parse import unquote, urlsplit

from .alert_settings import AlertPlace, AlertSettings, port_of
from .alerts import AlertChange

#: The longest that a place may be silent, seconds.
_SEND_S = 15.0


def document(change: AlertChange, server: str) -> dict[str, object]:
    """What a webhook gets."""
    return {
        "alert": change.rule.name,
        "state": "firing" if change.firing else "resolved",
        "severity": change.rule.severity,
        "summary": change.rule.summary,
        "description": change.rule.advice,
        "since": datetime.fromtimestamp(change.since_s, UTC).isoformat(timespec="seconds"),
        "server": server,
    }


def title_of(change: AlertChange, server: str) -> str:
    """The first line of a message."""
    return f"{server}: {change.rule.summary}" + ("" if change.firing else " This is over.")


def body_for(outlet: AlertPlace, change: AlertChange, server: str) -> bytes:
    """The JSON for a webhook or ntfy."""
    if outlet.kind == "webhook":
        return json.dumps(document(change, server)).encode()
    text = {
        "topic": outlet.topic,
        "title": title_of(change, server),
        "message": change.rule.advice,
        # Of 1 to 5.
        "priority": {"critical": 5, "warning": 4}[change.rule.severity] if change.firing else 3,
        "tags": ["rotating_light" if change.firing else "white_check_mark"],
    }
    return json.dumps(text).encode()


def mail_for(outlet: AlertPlace, change: AlertChange, server: str, sender: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = sender, outlet.address
    message["Subject"] = title_of(change, server)
    facts = document(change, server)
    lines = [f"{name}: {facts[name]}" for name in ("alert", "state", "severity", "since")]
    message.set_content(f"{change.rule.summary}\n{change.rule.advice}\n\n" + "\n".join(lines))
    return message


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which might lead anywhere."""

    def redirect_request(
        self, req: object, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> NoReturn:
        raise OSError(f"it redirects to {newurl}: name that place instead")


def send(settings: AlertSettings, outlet: AlertPlace, change: AlertChange, server: str) -> None:
    """Send one message; raises OSError. Blocks: call it on a thread."""
    try:
        if outlet.kind == "mail":
            _send_mail(settings, mail_for(outlet, change, server, settings.mail_from))
            return
        fields = {"Content-Type": "application/json", "User-Agent": "Tidegate"}
        request = urllib.request.Request(outlet.url, body_for(outlet, change, server), fields)
        # The body of the answer is not read: it may never end.
        urllib.request.build_opener(NoRedirect()).open(request, timeout=_SEND_S).close()
    except urllib.error.HTTPError:
        raise
    except (urllib.error.URLError, HTTPException, ValueError) as fault:
        # http.client and idna have a ValueError for addresses that cannot be asked.
        raise OSError(str(getattr(fault, "reason", fault))) from fault


def _send_mail(settings: AlertSettings, message: EmailMessage) -> None:
    parts = urlsplit(settings.mail_server or "")
    host, port = parts.hostname or "", port_of(settings.mail_server or "")
    context = ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(host, port, timeout=_SEND_S, context=context)
        if parts.scheme == "smtps"
        else smtplib.SMTP(host, port, timeout=_SEND_S)
    ) as mail:
        mail.ehlo()
        if parts.scheme == "smtp" and mail.has_extn("starttls"):
            mail.starttls(context=context)
        elif parts.scheme == "smtp" and parts.username:
            raise OSError("the mail server has no STARTTLS, so the password is not sent")
        if parts.username:
            mail.login(unquote(parts.username), unquote(parts.password or ""))
        mail.send_message(message)
