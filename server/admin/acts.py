"""What an operator can do, once each: pages and API both come here, and every act is logged.

All functions raise `Problem` (404, 409, 422) with a sentence for the operator.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from policies.settings import PolicySettings
from server.admin.context import AdminContext, Block, PassView, Revision, Rule, WaitingLook
from server.admin.forms import diff
from server.admin.web import Problem

PASSES_AT_ONCE = 10_000
#: Letters of a class name in a rule (`server.rules.Rule`).
CLASS_MAX = 32
LOGO_MAX_BYTES = 256 * 1024
RULES_MAX = 500


def cancel_lease(context: AdminContext, who: str, lease: int) -> None:
    found = next((view for view in context.leases() if view.lease == lease), None)
    if found is None or not context.cancel_lease(lease):
        raise Problem(404, f"There is no download {lease} (any more).")
    context.log("cancel", who, f"cancelled download {lease} of {found.file} by {found.client}")


def on_ticket(context: AdminContext, who: str, verb: str, number: int) -> None:
    """`verb` is expire or promote."""
    acts: dict[str, Callable[[int], bool]] = {
        "expire": context.expire_ticket,
        "promote": context.promote_ticket,
    }
    if not acts[verb](number):
        raise Problem(404, f"Ticket {number} is not waiting (any more).")
    word = "expired" if verb == "expire" else "promoted"
    context.log(verb, who, f"{word} ticket {number}")


def network_of(text: str) -> str:
    """An address or network in its canonical spelling."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise wrong(
            "network", f"{text!r} is neither an address nor a network such as 192.0.2.0/24."
        ) from None


def block(
    context: AdminContext, who: str, network: str, for_s: float | None, note: str, now: float
) -> Block:
    canonical = network_of(network)
    until = None if for_s is None else now + for_s
    found = Block(canonical, now, until, who, note)
    context.block(found)
    context.log("block", who, f"blocked {canonical}" + (f": {note}" if note else ""))
    return found


def unblock(context: AdminContext, who: str, network: str) -> None:
    canonical = network_of(network)
    if not context.unblock(canonical):
        raise Problem(404, f"{canonical} is not blocked.")
    context.log("unblock", who, f"unblocked {canonical}")


def apply(
    context: AdminContext,
    who: str,
    policy: str,
    settings: PolicySettings,
    note: str,
    expected: int,
    restored_from: int | None = None,
) -> Revision:
    """Make a policy current; raises StaleRevision when somebody else was faster."""
    if policy not in context.policies():
        known = ", ".join(context.policies())
        raise wrong("policy", f"There is no policy {policy!r}; choose one of {known}.")
    old = context.current()
    revision = context.apply(policy, settings, who, note, expected, restored_from)
    changes = diff(old.policy, old.settings, revision.policy, revision.settings)
    words = "; ".join(f"{c.name}: {c.before} → {c.after}" for c in changes[:12])
    context.log("apply", who, f"revision {revision.number}: {words or 'no change'}")
    return revision


async def restore(
    context: AdminContext, who: str, number: int, note: str, expected: int
) -> Revision:
    wanted = await context.revision(number)
    if wanted is None:
        raise Problem(404, f"There is no revision {number}.")
    # Settings that were added since then take their defaults; those that are gone are left out.
    kept = {
        name: value
        for name, value in wanted.settings.items()
        if name in PolicySettings.model_fields
    }
    try:
        settings = PolicySettings.model_validate(kept)
    except ValueError as error:
        raise Problem(409, f"Revision {number} no longer fits this version: {error}") from None
    return apply(context, who, wanted.policy, settings, note, expected, number)


def check_rule(rule: Rule) -> Rule:
    """The rule in its canonical form; raises Problem naming the field."""
    path = rule.path.strip()
    if not path.startswith("/"):
        raise wrong("path", "A pattern starts with / and may hold * and ?.")
    if rule.treat_as not in ("", "small", "large"):
        raise wrong("treat_as", "This is small, large or empty.")
    if len(rule.require_class) > CLASS_MAX:
        raise wrong("require_class", f"At most {CLASS_MAX} letters.", longest=CLASS_MAX)
    if not path.isprintable() or len(path) > 1024:
        raise wrong("path", "A pattern has at most 1024 characters that can be printed.")
    opens, registers = rule.hidden_until_s, rule.prequeue_from_s
    if registers is not None and (opens is None or registers >= opens):
        raise wrong("prequeue_from_s", "A pre-queue opens before the release, which needs a time.")
    return replace(rule, path=path)


def put_rule(context: AdminContext, who: str, rule: Rule) -> Rule:
    """Add a rule or replace the one with the same pattern."""
    rule = check_rule(rule)
    rules = list(context.rules())
    at = next((i for i, other in enumerate(rules) if other.path == rule.path), len(rules))
    if at == RULES_MAX:
        raise wrong("path", f"There can be at most {RULES_MAX} rules.")
    rules[at : at + 1] = [rule]
    context.set_rules(rules)
    context.log("rule", who, f"set the rule for {rule.path}")
    return rule


def drop_rule(context: AdminContext, who: str, path: str) -> None:
    rules = context.rules()
    kept = [rule for rule in rules if rule.path != path]
    if len(kept) == len(rules):
        raise Problem(404, f"There is no rule for {path}.")
    context.set_rules(kept)
    context.log("rule", who, f"removed the rule for {path}")


def rule_for(rules: Sequence[Rule], path: str) -> Rule | None:
    """The last rule whose pattern fits."""
    fits = (rule for rule in reversed(rules) if fnmatch.fnmatchcase(path, rule.path))
    return next(fits, None)


def issue_passes(
    context: AdminContext,
    who: str,
    *,
    count: int,
    kind: str,
    path: str,
    not_before_s: float,
    expires_s: float,
    max_uses: int,
    note: str,
) -> Sequence[PassView]:
    known = context.current().settings.get("class_weights", {})
    if kind not in known:
        names = ", ".join(known) or "none is set up on the policy page"
        raise wrong("kind", f"There is no class {kind!r}; known: {names}.")
    if not 1 <= count <= PASSES_AT_ONCE:
        raise wrong("count", f"1 to {PASSES_AT_ONCE:,} at once.", minimum=1, maximum=PASSES_AT_ONCE)
    if expires_s <= not_before_s:
        raise wrong("expires_s", "The end must be after the start.")
    found = context.issue_passes(count, kind, path, not_before_s, expires_s, max_uses, note, who)
    context.log("passes", who, f"issued {len(found)} tickets of class {kind} for {path}")
    return found


def revoke_pass(context: AdminContext, who: str, serial: str) -> None:
    if not context.revoke_pass(serial):
        raise Problem(404, f"There is no ticket {serial}, or it is revoked already.")
    context.log("passes", who, f"revoked ticket {serial}")


def set_look(
    context: AdminContext, who: str, title: str, text: str, logo: bytes | None
) -> WaitingLook:
    """Change the waiting page; a `logo` of None stays, an empty one is removed."""
    old = context.waiting_look()
    kind = old.logo_type
    if logo:
        kind = _picture_kind(logo)
        if not kind or len(logo) > LOGO_MAX_BYTES:
            most = LOGO_MAX_BYTES // 1024
            raise wrong("logo", f"The logo is a PNG, JPEG or WebP of at most {most} KiB.")
    elif logo is not None:
        kind = ""
    look = WaitingLook(title, text, old.logo if logo is None else logo, kind)
    context.set_waiting_look(look)
    context.log("waiting-page", who, "changed the waiting page's look")
    return look


def _picture_kind(data: bytes) -> str:
    """The media type of a raster picture, by its first bytes; no SVG, since it may hold script."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def wrong(field: str, message: str, **bounds: Any) -> Problem:
    """One bad field, its message and its bounds."""
    return Problem(
        422,
        f"{field}: {message}",
        code="invalid-value",
        errors=[{"field": field, "message": message, **bounds}],
    )
