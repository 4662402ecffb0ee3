"""What an operator does first, each step with its state: Now shows it until a crowd came."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.units import format_rate
from ..store.usage import begun_ever
from .app import HandlerCall
from .files import rule_out
from .policy import PAGE
from .render import moment


@dataclass(frozen=True, slots=True)
class FirstStep:
    """One step; `state` is a word or two, `done` says whether it needs anything."""

    title: str
    done: bool
    state: str
    words: str
    link: str = ""
    link_text: str = ""
    command: str = ""


async def first_steps(ask: HandlerCall) -> list[FirstStep]:
    """The steps; none once a crowd came, in this run or in an earlier one."""
    # A crowd can be compared. A trial by hand takes fewer downloads.
    crowd = PAGE.compared_least
    figures = ask.server.vitals.figures()
    if figures["people_waiting"] or figures["offers_total"] >= crowd:
        return []
    try:
        begun = await ask.server.store.read(lambda connection: begun_ever(connection, crowd))
    except Exception:  # noqa: BLE001 - a database that does not answer is told in the headline
        return []
    begun = max(begun, figures["begun_downloads_total"])
    if begun >= crowd:
        return []
    own = next(iter(ask.server.vitals.read().totals.listeners), "").rstrip("/")
    return [await _files(ask, own), _line(ask), _release(ask), _trial(own, begun)]


async def _files(ask: HandlerCall, own: str) -> FirstStep:
    _, total = await ask.server.files.read("", "path", 0, 1)
    told = "1 file is served" if total == 1 else f"{total:,} files are served"
    return FirstStep(
        "Share the link",
        total > 0,
        told if total else "no file yet",
        "Visitors find all files here. Behind a proxy, share its address instead.",
        f"{own}/" if own else "",
        f"{own}/",
    )


def _line(ask: HandlerCall) -> FirstStep:
    cap = ask.server.revisions.current.settings.get("bandwidth_bytes_s")
    found = ask.server.vitals.read().totals.capacity_bytes_s
    if cap is not None:
        state = f"at most {format_rate(cap)}"
    else:
        state = "not found yet" if found is None else f"{format_rate(found)} found"
    return FirstStep(
        "Say what the line carries",
        cap is not None or found is not None,
        state,
        "Without a limit the server finds what the line carries once downloads fill it.",
        "/policy#f-bandwidth_bytes_s",
        "Change the limit" if cap is not None else "Set a limit",
    )


def _release(ask: HandlerCall) -> FirstStep:
    coming = sorted(
        (rule.hidden_until_s, rule.path)
        for rule in map(rule_out, ask.server.rules.all())
        if rule.hidden_until_s is not None and rule.hidden_until_s > ask.now
    )
    state = f"{coming[0][1]} opens {moment(coming[0][0], ask.zone)}" if coming else "nothing hidden"
    return FirstStep(
        "Hide a release until its hour",
        bool(coming),
        state,
        "Copy the files before; nobody sees them until then, and their digests are ready.",
        "/files/rule",
        "Add a rule",
    )


def _trial(own: str, begun: int) -> FirstStep:
    return FirstStep(
        "Try it with a crowd",
        False,
        f"{begun} download{'s' if begun != 1 else ''} so far" if begun else "not tried yet",
        "From another machine. The report then shows who waited, and how long.",
        command=f"tidegate loadtest --host {own} \\\n  --release FOLDER --visitors 200 --within 5m",
    )
