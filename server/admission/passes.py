"""Priority passes: issued by the operator, counted and revoked here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from ...protocol.bounded_table import BoundedTable
from ...protocol.errors import BadToken
from ...protocol.ticket import KeyRing, Pass
from ..store.records import PassRecord


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good pass gives; `PassBook.begin` counts it."""

    permit: Pass
    priority_class: str
    weight: float


class PassBook:
    """Knows every pass that was used or revoked. `keep` is called with each changed count.

    A node without a leader does not know them and does not judge (`judges`): a pass then neither
    helps nor hurts, and is counted later.
    """

    def __init__(
        self, keys: KeyRing, keep: Callable[[PassRecord], None], *, judges: bool = True
    ) -> None:
        self.keys = keys
        self._keep = keep
        self._judges = judges
        self._records: dict[str, PassRecord] = {}
        #: The pass of each download, while it waits and runs.
        self._begun: BoundedTable[tuple[str, str], str] = BoundedTable(200_000)

    def load(self, records: Iterable[PassRecord]) -> None:
        self._records |= {record.serial: record for record in records}

    def records(self) -> list[PassRecord]:
        """All known passes, newest first."""
        return sorted(self._records.values(), key=lambda record: -record.issued_s)

    def issue(self, terms: Pass, now: float, note: str = "") -> tuple[str, PassRecord]:
        """A new pass of these terms: the token for its holder, and the record for the store."""
        permit = replace(terms, serial=secrets.token_hex(8))
        token = self.keys.write_pass(permit)
        record = PassRecord(**asdict(permit), issued_s=now, note=note)
        self._records[record.serial] = record
        return token, record

    def read(self, token: str, path: str, now: float) -> Grant:
        """What a token grants for this path now. Raises `BadToken` with the reason."""
        permit = self.keys.read_pass(token, now)
        if not self._judges:
            return Grant(permit, "", 1.0)
        record = self._records.get(permit.serial)
        if record is not None and record.revoked:
            raise BadToken("This pass was revoked by the operator.", code="pass-revoked")
        # Uses are checked apart: a client that began with the last one must be able to resume.
        permit.check(path, now, 0)
        return Grant(permit, permit.priority_class, permit.weight)

    def check_use(self, grant: Grant, client: str, file: str) -> None:
        """Raises `BadToken` if a new download would exceed the uses of the pass."""
        record = self._records.get(grant.permit.serial)
        if (
            record is not None
            and record.uses >= grant.permit.max_uses
            and self._begun.get((client, file)) != grant.permit.serial
        ):
            raise BadToken("This pass has been used as often as it allows.", code="pass-used")

    def begin(self, grant: Grant, client: str, file: str, now: float) -> None:
        """Count a download that started or got a place. Its polls and resumes do not count."""
        permit = grant.permit
        if self._begun.get((client, file)) == permit.serial:
            return
        self._begun[client, file] = permit.serial
        record = self._records.get(permit.serial) or PassRecord(**asdict(permit), issued_s=now)
        record = replace(record, uses=record.uses + 1)
        self._records[permit.serial] = record
        self._keep(record)

    def end(self, client: str, file: str) -> None:
        """The download is over: the next one of this file is another use."""
        self._begun.pop((client, file), None)

    def revoke(self, serial: str) -> bool:
        """Revoke a pass at once; False if it is unknown here."""
        record = self._records.get(serial)
        if record is None:
            return False
        self._records[serial] = replace(record, revoked=True)
        return True
