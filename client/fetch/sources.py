"""One mirror of the file: its URL, its manners, what it told about its copy, what it gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from client.net.retry import Manners, Visit
from client.net.urls import Url


@dataclass(slots=True, eq=False)
class Source:
    """A mirror. `dropped` says in words why it is out of the game, None while it is in.

    `at` is where redirects have led. `wait_until` is set while it told us to come back later.
    `parts` turns false when it cannot serve ranges; `last_resort` when it is used only if no
    other is left. `receiving` while its file comes by multicast. `standby` while it would not help.
    """

    number: int
    url: Url
    visit: Visit
    at: Url
    listed: bool = True
    validator: str | None = None
    size_bytes: int | None = None
    answered: bool = False
    parts: bool = True
    #: It has sent a part, or says that it can.
    ranged: bool = False
    last_resort: bool = False
    #: It takes one request at a time on a connection: it closes after each, or it stalls.
    single: bool = False
    #: It has answered a request that was sent while another was under way.
    pipelines: bool = False
    #: How much an answer had brought when the mirror cut one off, and what is safe to ask for.
    cut_bytes: int | None = None
    most_bytes: int | None = None
    dropped: str | None = None
    excluded: bool = False
    receiving: bool = False
    standby: bool = False
    #: Asked for bytes past the end before the size was known.
    beyond: bool = False
    wait_until: float | None = None
    waiting_text: str = ""
    place: int | None = None
    #: When the server expects to let it start, where it told.
    starts_at: float | None = None
    redirects: int = 0
    rtt_s: float = 0.0
    received_bytes: int = 0
    requests: int = 0
    connections: int = 0
    retries: int = 0
    busy_s: float = 0.0
    #: How many connections its lease allows, where it told.
    lease_connections: int | None = None
    lanes: list[int] = field(default_factory=list)

    @classmethod
    def make(
        cls, number: int, url: Url, manners: Manners, random: Random, now: float, listed: bool
    ) -> Source:
        """A fresh mirror whose visit begins now."""
        visit = Visit(manners, random, now)
        visit.begin(now)
        return cls(number, url, visit, url, listed)

    @property
    def host(self) -> str:
        """What the rate database knows it by."""
        return f"{self.url.host}:{self.url.port}"

    @property
    def resting(self) -> bool:
        """Whether there is nothing to ask it for: it sends only the whole file, and has."""
        return not self.parts and not self.last_resort

    @property
    def helps(self) -> bool:
        """Whether it can be asked now, or called in."""
        return self.usable or (self.standby and self.dropped is None)

    @property
    def usable(self) -> bool:
        """Whether it may be asked now."""
        return (
            self.dropped is None
            and self.wait_until is None
            and not self.excluded
            and not self.receiving
            and not self.standby
        )
