"""Adaptive: the policy that measures best for the conditions, chosen anew when settings change.

At present that is Fair: while the line has room it admits all clients like a plain server, small
jobs keep their reserve, and only clients that must wait get tickets. `Snapshot.mode` says what
runs; docs/decisions/policies.md says why.
"""

from __future__ import annotations

from .fair import FairPolicy
from .hooks import AdmissionView, Policy


class AdaptivePolicy(Policy):
    """Runs the best fixed policy."""

    name = "adaptive"
    summary = "The policy that measures best; at present fair."
    reads = FairPolicy.reads
    prefers_present = FairPolicy.prefers_present

    @classmethod
    def build(cls, admission: AdmissionView) -> Policy:
        """The policy to run."""
        return FairPolicy(admission)
