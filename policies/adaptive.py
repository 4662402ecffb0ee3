"""Adaptive: the policy that measures best for the conditions, chosen anew when settings change.

At present that is Fair: while the line has room it admits everybody like a plain server, small jobs
keep their reserve, and tickets are given only to those who must wait. `Snapshot.mode` says what
runs; why, and where the comparison is still to be repeated, `docs/decisions/policies.md`.
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
