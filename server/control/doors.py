"""The maintenance switch: while the doors are closed, no download starts.

Running downloads finish, and new requests are queued. The waiting page says why and until when. The
switch survives a restart and a change of policy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..admission.gate import Gate
from .branding import Branding
from .key_values import KeyValues


@dataclass(frozen=True, slots=True)
class DoorState:
    """Whether downloads may start.

    Visitors read `text` and `opens_s`, which is no timer; open doors have neither.
    """

    closed: bool = False
    text: str = ""
    opens_s: float | None = None
    since_s: float | None = None
    who: str = ""


class Doors:
    """Keeps the state of the doors and applies it."""

    def __init__(self, gate: Gate, branding: Branding, documents: KeyValues) -> None:
        self._gate = gate
        self._branding = branding
        self._documents = documents
        self.state = DoorState(**documents.read("doors"))

    def change(self, state: DoorState) -> None:
        """Store this state and apply it."""
        self.state = state
        self._documents.write("doors", asdict(state))
        self.put_in_force()

    def put_in_force(self) -> None:
        self._branding.announce(self.state.text, self.state.opens_s)
        self._gate.close_doors(self.state.closed)
