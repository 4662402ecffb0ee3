"""The maintenance switch: close the doors, let what runs finish, open them again.

While they are closed new requests are queued and no download starts; the waiting page says why
and until when. It outlives a restart and a change of policy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..admission.gate import Gate
from .branding import Branding
from .key_values import KeyValues

TEXT_MAX = 500
_PAPER = "doors"


@dataclass(frozen=True, slots=True)
class DoorState:
    """Whether anybody may start; `text` and `opens_s` (expected, no timer) are told to visitors."""

    closed: bool = False
    text: str = ""
    opens_s: float | None = None
    since_s: float | None = None
    who: str = ""


class Doors:
    """Keeps the state of the doors and puts it in force."""

    def __init__(self, gate: Gate, branding: Branding, papers: KeyValues) -> None:
        self._gate = gate
        self._branding = branding
        self._papers = papers
        self.state = DoorState(**papers.read(_PAPER))

    def change(self, state: DoorState) -> None:
        """Close or open from now on."""
        self.state = state
        self._papers.write(_PAPER, asdict(state))
        self.put_in_force()

    def put_in_force(self) -> None:
        """Tell the gate and the waiting page."""
        state = self.state
        said = (state.text, state.opens_s) if state.closed else ("", None)
        self._branding.announce(*said)
        self._gate.close_doors(state.closed)
