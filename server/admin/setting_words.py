"""What people call each setting of the policy form, what it does, and the chart that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingWords:
    """The words of one setting; `chart` names the chart of the page Now that shows its effect."""

    label: str
    effect: str
    chart: str


#: The settings that most servers need.
MAIN: Mapping[str, SettingWords] = {
    "bandwidth_bytes_s": SettingWords(
        "Line",
        "What the line carries at most, such as 40Mbit. Empty: the server finds it by measuring.",
        "goodput",
    ),
    "slots": SettingWords(
        "Slots", "How many downloads may run at once. Under Fair the line decides instead.", "slots"
    ),
    "small_below_bytes": SettingWords(
        "Small below",
        "A file below this size, such as 256kB, never waits behind large ones.",
        "slots",
    ),
}

#: All other settings, by what they are for.
ADVANCED: Mapping[str, Mapping[str, SettingWords]] = {
    "Slots and line": {
        "reserve_small": SettingWords(
            "Slots kept for small files", "Large downloads never take these slots.", "slots"
        ),
        "slots_max": SettingWords(
            "Most downloads at once",
            "Where the line decides, no more than this many downloads run or are paused.",
            "slots",
        ),
    },
    "Shares": {
        "network_shares": SettingWords(
            "Shares of one network",
            "New clients of one network (IPv4 /24, IPv6 /48) have this many shares of the line "
            "together. 0: no limit.",
            "queue",
        ),
        "class_weights": SettingWords(
            "Priority classes",
            "A pass of a class with weight 4 enters the queue at a quarter of its length.",
            "queue",
        ),
        "tickets_per_client": SettingWords(
            "Tickets of one client", "One client may wait for this many files at once.", "queue"
        ),
        "connections_per_lease": SettingWords(
            "Connections of one download",
            "One download may use this many connections at once.",
            "held",
        ),
        "slot_use_fraction": SettingWords(
            "Least use of a slot",
            "While others wait, a download that takes less than this part of its share gives its "
            "slot to the next. 0: never.",
            "slots",
        ),
        "lease_idle_s": SettingWords(
            "Time to reconnect",
            "A download that lost its connection keeps its slot for this long.",
            "slots",
        ),
    },
    "Turns": {
        "ticket_ttl_s": SettingWords(
            "Time to take a turn",
            "A client whose turn has come keeps it for this long after the told time.",
            "queue",
        ),
        "ready_list": SettingWords(
            "Ready list",
            "This many tickets may start as soon as a slot is free. Empty: as many as it takes to "
            "keep the slots in use.",
            "queue",
        ),
        "ready_grow_s": SettingWords(
            "Growth of the ready list",
            "While slots stay free although people wait, the ready list grows by a quarter each "
            "time this has passed.",
            "queue",
        ),
        "tickets_max": SettingWords(
            "Most tickets",
            "Beyond this many, clients are asked to come back and have no place.",
            "queue",
        ),
    },
    "When clients come back": {
        "come_back_s": SettingWords(
            "Fixed time",
            "Clients that wait for a large file are told this time. Empty: the time of their turn.",
            "wait",
        ),
        "busy_retry_s": SettingWords(
            "Time without a ticket", "Clients that get no ticket are told this time.", "flow"
        ),
        "retry_min_s": SettingWords(
            "Shortest time", "Nobody is asked to come back sooner than this.", "flow"
        ),
        "retry_max_s": SettingWords(
            "Longest time", "A longer wait is told in several visits.", "flow"
        ),
        "retry_jitter": SettingWords(
            "Spread",
            "Times are lengthened at random by up to this part, so that clients do not return "
            "together.",
            "flow",
        ),
    },
    "Clients that come too early": {
        "early_polls_free": SettingWords(
            "Early visits forgiven", "This many early visits of a ticket have no effect.", "flow"
        ),
        "early_tolerance_s": SettingWords(
            "Tolerance", "A visit this much before the told time counts as on time.", "flow"
        ),
        "early_penalty_s": SettingWords(
            "Delay", "Each further early visit moves the told time by this.", "wait"
        ),
        "early_penalty_max_s": SettingWords(
            "Most delay", "Early visits move one told time by no more than this.", "wait"
        ),
        "early_answer_s": SettingWords(
            "Slow answer",
            "The answer to a further early visit is kept back this long, and up to five times as "
            "long when more follow.",
            "held",
        ),
    },
}

WORDS: Mapping[str, SettingWords] = {
    **MAIN,
    **{name: words for group in ADVANCED.values() for name, words in group.items()},
}
#: Names of policies for people, where the name itself is none.


def setting_title(name: str) -> str:
    """What people call a setting; one that has no words yet keeps its name."""
    found = WORDS.get(name)
    return found.label if found else name.replace("_", " ").capitalize()


def policy_title(name: str) -> str:
    """What people call a policy."""
    return "First come" if name == "fcfs" else name.capitalize()
