"""What people call each setting of the policy form, and the chart that shows its effect.

What a setting does is its description in `policies.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class SettingWords(NamedTuple):
    """The name of one setting for people, and of the chart of the page Now."""

    label: str
    chart: str


#: The settings that most servers need.
MAIN: Mapping[str, SettingWords] = {
    "bandwidth_bytes_s": SettingWords("Line", "goodput"),
    "slots": SettingWords("Slots", "slots"),
    "small_below_bytes": SettingWords("Small below", "slots"),
}

#: All other settings, by what they are for.
ADVANCED: Mapping[str, Mapping[str, SettingWords]] = {
    "Slots and line": {
        "reserve_small": SettingWords("Slots kept for small files", "slots"),
        "slots_max": SettingWords("Most downloads at once", "slots"),
    },
    "Shares": {
        "network_shares": SettingWords("Shares of one network", "queue"),
        "class_weights": SettingWords("Priority classes", "queue"),
        "tickets_per_client": SettingWords("Tickets of one client", "queue"),
        "connections_per_lease": SettingWords("Connections of one download", "held"),
        "slot_use_fraction": SettingWords("Least use of a slot", "slots"),
        "lease_idle_s": SettingWords("Time to reconnect", "slots"),
    },
    "Turns": {
        "ticket_ttl_s": SettingWords("Time to take a turn", "queue"),
        "ready_list": SettingWords("Ready list", "queue"),
        "ready_grow_s": SettingWords("Growth of the ready list", "queue"),
        "tickets_max": SettingWords("Most tickets", "queue"),
    },
    "When clients come back": {
        "come_back_s": SettingWords("Fixed time", "wait"),
        "busy_retry_s": SettingWords("Time without a ticket", "flow"),
        "retry_min_s": SettingWords("Shortest time", "flow"),
        "retry_max_s": SettingWords("Longest time", "flow"),
        "retry_jitter": SettingWords("Spread", "flow"),
    },
    "Clients that come too early": {
        "early_polls_free": SettingWords("Early visits forgiven", "flow"),
        "early_tolerance_s": SettingWords("Tolerance", "flow"),
        "early_penalty_s": SettingWords("Delay", "wait"),
        "early_penalty_max_s": SettingWords("Most delay", "wait"),
        "early_answer_s": SettingWords("Slow answer", "held"),
    },
}

WORDS: Mapping[str, SettingWords] = {
    **MAIN,
    **{name: words for group in ADVANCED.values() for name, words in group.items()},
}


def setting_title(name: str) -> str:
    """What people call a setting; one that has no words yet keeps its name."""
    found = WORDS.get(name)
    return found.label if found else name.replace("_", " ").capitalize()


def in_words(text: str) -> str:
    """A text about settings, in which each has the name that people know."""
    return re.sub(r"\w+_\w+", lambda found: f"“{setting_title(found[0])}”", text)


def policy_title(name: str) -> str:
    return "First come" if name == "fcfs" else name.capitalize()
