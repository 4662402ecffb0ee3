"""Registering before a release opens: the order is drawn at random, and every visitor can check it.

Laws:
- Files that open at the same moment share one draw. Its seed is made before the first entry, and
  the SHA-256 of the seed is public from then on. So not even the operator can choose the seed
  once entries are known.
- An entry has a random id, which its owner gets. The order is that of SHA-256(seed + id). After the
  draw, seed and ids are published in that order.
- An early entry gains nothing: every entry before the opening has the same chance. Clients that
  come while the drawn entries get their tickets follow them in the order of arrival.
- Entries cost nothing, so their number is bounded by address and by network (/24, /48). Each is
  written as a row of its own, once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from ..files.transfer import FileKey, Representation
from ..http.answers import JSON_NOW

ROUTE = "/-/prequeue"


@dataclass(frozen=True, slots=True)
class DrawBounds:
    """How many may register for one opening, and how draws are kept."""

    #: Entries seated in one turn of the reactor: a few milliseconds.
    seated_at_once: int = 500
    #: Entries of one address for one opening.
    most_of_address: int = 256
    #: Entries of one network.
    most_of_network: int = 1024
    #: All entries.
    most_entries: int = 200_000
    #: A draw can be checked for a week after its opening.
    kept_s: float = 7 * 86_400.0
    #: Changes of a draw are written together after this time, seconds.
    save_every_s: float = 2.0


DRAWS = DrawBounds()


@dataclass(frozen=True, slots=True)
class DrawEntry:
    """One registration: the client's key, the wanted file, and its networks, narrow to wide."""

    ident: str
    client: str
    rep: Representation
    network: tuple[str, ...] = ()

    def row(self, opens_s: float) -> dict[str, Any]:
        """The entry as it is stored; the caller changes nothing in it."""
        return {
            "opens_s": opens_s,
            "ident": self.ident,
            "client": self.client,
            "network": list(self.network),
            "rep": _stored(self.rep),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> DrawEntry:
        rep = dict(row["rep"])
        rep |= {"path": bytes.fromhex(rep["path"]), "key": FileKey(**rep["key"])}
        return cls(row["ident"], row["client"], Representation(**rep), tuple(row["network"]))


@lru_cache(64)
def _stored(rep: Representation) -> dict[str, Any]:
    """The stored form of a file. One document serves all entries that want the same."""
    return {**asdict(rep), "path": rep.path.hex(), "key": rep.key._asdict()}


def draw_key(seed: str, ident: str) -> str:
    """The sort key of the drawn order: the hexadecimal SHA-256 of seed and id."""
    return hashlib.sha256((seed + ident).encode("ascii")).hexdigest()


@dataclass(slots=True)
class Draw:
    """The registrations for one opening. `seed` is hexadecimal, `keep` stores new entries."""

    opens_s: float
    seed: str
    path: str = ""
    keep: Callable[[Draw, DrawEntry], None] = lambda draw, entry: None
    entries: dict[tuple[str, str], DrawEntry] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    #: How many entered; the entries themselves are forgotten some time after they were seated.
    entered: int = 0
    _left: list[DrawEntry] = field(default_factory=list)
    _of_networks: dict[str, int] = field(default_factory=dict)
    seated: bool = False
    changed: bool = True

    @property
    def name(self) -> str:
        """The name under which it is stored. Names of entries have a blank and the id behind it."""
        return f"draw {self.opens_s:.0f}"

    @property
    def commitment(self) -> str:
        """Published before the first entry."""
        return hashlib.sha256(self.seed.encode("ascii")).hexdigest()

    @property
    def audit_url(self) -> str:
        return f"{ROUTE}/{self.opens_s:.0f}"

    def published_seed(self, now: float) -> str | None:
        """The seed once the order stands."""
        return self.seed if self.order or (self.seated and now >= self.opens_s) else None

    def enter(
        self, client: str, rep: Representation, network: Sequence[str] = ()
    ) -> DrawEntry | None:
        """Register, or find the registration again; None if its network has too many."""
        found = self.entries.get((client, rep.url_path))
        if found is None and self._has_room(network):
            found = DrawEntry(secrets.token_hex(8), client, rep, tuple(network))
            self.add(found)
            self.entered += 1
            self.changed = True
            if self.order:  # the draw is done: behind all drawn entries
                self.order.append(found.ident)
                self._left.append(found)
            self.keep(self, found)
        return found

    def add(self, entry: DrawEntry) -> None:
        """Count an entry, new or stored."""
        self.entries[entry.client, entry.rep.url_path] = entry
        for key in entry.network:
            self._of_networks[key] = self._of_networks.get(key, 0) + 1

    def resume_seating(self) -> None:
        """Continue after a restart. Entries with a ticket in the journal find it again."""
        by_ident = {entry.ident: entry for entry in self.entries.values()}
        self._left = [by_ident[ident] for ident in self.order if ident in by_ident]

    def _has_room(self, network: Sequence[str]) -> bool:
        if len(self.entries) >= DRAWS.most_entries:
            return False
        bounds = [DRAWS.most_of_address] + [DRAWS.most_of_network] * (len(network) - 1)
        return all(
            self._of_networks.get(key, 0) < bound
            for key, bound in zip(network, bounds, strict=False)
        )

    def next_seats(self, most: int) -> list[DrawEntry]:
        """The next entries to be seated, in the drawn order; draws at the first call."""
        if not self.order and not self.seated:
            drawn = sorted(self.entries.values(), key=lambda e: draw_key(self.seed, e.ident))
            self.order = [entry.ident for entry in drawn]
            self._left = drawn
        seats, self._left = self._left[:most], self._left[most:]
        self.seated = not self._left
        self.changed = True
        return seats

    def document(self, now: float) -> dict[str, Any]:
        """What is published: enough to repeat the draw."""
        found: dict[str, Any] = {
            "opens_s": self.opens_s,
            "commitment_sha256": self.commitment,
            "entered": self.entered,
            "rule": "order by sha256(seed + id), both as lower-case hexadecimal text; later "
            "entries follow in the order of coming",
        }
        seed = self.published_seed(now)
        if seed is not None:
            found |= {"seed": seed, "order": list(self.order)}
        return found


class Prequeue:
    """All draws of a server. `save` stores one document under its name, `forget` removes one."""

    def __init__(
        self,
        save: Callable[[str, dict[str, Any]], None],
        forget: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._save = save
        self._forget = forget
        self._draws: dict[float, Draw] = {}
        self._stale: list[str] = []
        self._saved_s = 0.0

    def load(self, bodies: Iterable[Mapping[str, Any]], now: float) -> None:
        """Continue the draws of an earlier run."""
        rows = []
        for body in bodies:
            if "ident" in body:
                rows.append(body)
                continue
            draw = Draw(body["opens_s"], body["seed"], body.get("path", ""), self._keep)
            draw.order, draw.entered = list(body["order"]), body.get("entered", 0)
            draw.seated, draw.changed = body["seated"], False
            self._draws[draw.opens_s] = draw
        for row in rows:
            found = self._draws.get(row["opens_s"])
            if found is None or found.seated or found.opens_s < now - DRAWS.kept_s:
                self._stale.append(f"draw {row['opens_s']:.0f} {row['ident']}")
            else:
                found.add(DrawEntry.of(row))
        for draw in list(self._draws.values()):
            if draw.opens_s < now - DRAWS.kept_s:
                self._stale.append(draw.name)
                del self._draws[draw.opens_s]
            elif draw.order and not draw.seated:
                draw.resume_seating()

    def plan(self, openings: Iterable[tuple[float, str]], now: float) -> None:
        """Make a draw for every coming opening, so that its commitment is public at once."""
        for opens_s, path in openings:
            if opens_s > now:
                self.draw(opens_s).path = path

    def draw(self, opens_s: float) -> Draw:
        found = self._draws.get(opens_s)
        if found is None:
            found = self._draws[opens_s] = Draw(opens_s, secrets.token_hex(32), keep=self._keep)
        return found

    def draws(self) -> list[Draw]:
        """All draws, the next opening first."""
        return [self._draws[at] for at in sorted(self._draws)]

    def holds_back(self, opens_s: float | None) -> bool:
        """Whether an opening's drawn entries are still being seated."""
        draw = self._draws.get(opens_s) if opens_s is not None else None
        return draw is not None and bool(draw.entries) and not draw.seated

    def due(self, now: float) -> list[DrawEntry]:
        """Entries whose turn to be seated has come."""
        for draw in self._draws.values():
            if draw.opens_s <= now and draw.entries and not draw.seated:
                return draw.next_seats(DRAWS.seated_at_once)
        return []

    def tend(self, now: float) -> None:
        """Save what changed, now and then."""
        if now - self._saved_s < DRAWS.save_every_s:
            return
        self._saved_s = now
        self.save()

    def save(self) -> None:
        """Save what changed of the draws, and drop what is over; entries are saved as they come."""
        while self._stale:
            self._forget(self._stale.pop())
        for draw in self._draws.values():
            if draw.changed:
                draw.changed = False
                body = {
                    "opens_s": draw.opens_s,
                    "seed": draw.seed,
                    "path": draw.path,
                    "entered": draw.entered,
                    "order": list(draw.order),
                    "seated": draw.seated,
                }
                self._save(draw.name, body)

    def _keep(self, draw: Draw, entry: DrawEntry) -> None:
        self._save(f"{draw.name} {entry.ident}", entry.row(draw.opens_s))

    def answer(self, request: Any, now: float) -> None:
        """The public document of one draw."""
        name = request.path[len(ROUTE) + 1 :].decode("latin-1")
        found = next((d for d in self._draws.values() if f"{d.opens_s:.0f}" == name), None)
        if found is None:
            request.refuse(404, "not-found", "There is no such draw.")
            return
        request.respond(200, JSON_NOW, json.dumps(found.document(now)).encode())
