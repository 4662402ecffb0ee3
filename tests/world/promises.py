"""Which sentences promise something, and what holds those that no oracle watches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

DOCUMENTS = (
    "README.md",
    "PROTOCOL.md",
    "docs/operations.md",
    "docs/cluster.md",
    "docs/security.md",
)
#: Words of a promise. A paragraph or row that names its test needs no oracle.
_PROMISING = re.compile(r"\b(never|nobody|survives?|kept|keeps|at once)\b", re.IGNORECASE)

#: The beginnings of promises without an oracle: the test that holds each, or why it is none.
WITHOUT_ORACLE: Mapping[str, Mapping[str, str]] = {
    "README.md": {
        "`tidegate mirror` keeps mirrors in step": (
            "tests/test_e2e_mirror.py::"
            "test_a_mirror_follows_serves_is_listed_and_taken_off_the_list"
        ),
        "No, if your line is never full": "advice",
    },
    "PROTOCOL.md": {
        "| `Tidegate-Wait: ticket` |": "what a client says",
        "One that began while nobody waited has none": "a definition",
        "Any other says `503 no-leader`, and the client keeps its ticket.": (
            "tests/test_server_cluster_identity.py::"
            "test_no_state_of_the_keys_makes_a_good_ticket_forged"
        ),
        "Asking is never an early visit.": (
            "tests/test_server_gate.py::"
            "test_a_page_that_watches_and_goes_keeps_the_return_that_it_was_told"
        ),
        "Three such requests of a client are held": (
            "tests/test_server_gate.py::"
            "test_a_page_that_watches_hears_of_its_turn_at_once_and_finds_its_slot"
        ),
        "A `User-Agent` that is held is answered at once": (
            "tests/test_twins_waiting.py::test_a_wait_is_told_the_same_in_every_form"
        ),
        "One more connection than `Tidegate-Lease-Connections`": (
            "tests/test_e2e_parked.py::"
            "test_twelve_curls_and_four_clients_of_one_machine_all_get_their_files"
        ),
        "Clients that read answers (`Tidegate-Wait`, JSON)": (
            "tests/test_server_identify.py::"
            "test_one_browser_that_opens_a_download_too_often_is_told_place_time_and_way_on"
        ),
        "Beyond, the network (/24, /48) that has most": (
            "tests/attacks/test_parked.py::"
            "test_a_fresh_curl_waits_although_ten_addresses_hold_every_place_to_wait"
        ),
        "- API tokens: `tga_` and 24 random bytes": "a format",
    },
    "docs/operations.md": {
        "Tickets, passes and cookies are never written.": (
            "the world has no access log, which has no fields for them"
        ),
    },
    "docs/cluster.md": {
        "Use workers when TLS keeps a core busy": "advice",
        "| parent | the listening sockets": "a definition",
        "| a node or its machine is lost |": (
            "tests/test_server_cluster.py::"
            "test_a_node_that_is_lost_frees_its_slots_and_keeps_its_clients_places"
        ),
        "| the leader dies, stands still or loses its lease |": (
            "tests/test_server_cluster.py::"
            "test_no_place_grows_when_the_leader_is_lost_with_its_machine"
        ),
        "| the parent dies |": (
            "tests/test_e2e_workers.py::test_children_do_not_outlive_a_parent_that_was_killed"
        ),
        "| SIGTERM |": (
            "tests/test_e2e_workers.py::test_a_stopped_server_lets_downloads_finish_and_is_gone"
        ),
        "- `/-/ready` stays 200": (
            "tests/test_server_cluster.py::"
            "test_without_a_leader_newcomers_get_tickets_and_no_large_download_starts"
        ),
        "Otherwise it begins anew, never as a mixture": (
            "tests/test_e2e_cluster.py::"
            "test_a_download_goes_on_at_another_machine_and_is_never_a_mixture"
        ),
        "| who leads |": (
            "tests/test_server_cluster_election.py::"
            "test_the_lease_is_taken_when_it_has_run_out_or_was_ours_or_was_given_back"
        ),
        "| `--bandwidth`, `--slots` |": (
            "tests/test_server_cluster.py::"
            "test_the_machine_of_a_lost_leader_keeps_its_share_for_a_while_under_the_next"
        ),
        "- A ticket or pass whose key the node has not read": (
            "tests/test_server_cluster.py::"
            "test_a_node_without_a_leader_calls_no_proof_forged_whose_key_it_has_not_read"
        ),
        "A database that a cluster has used keeps its own keys.": (
            "tests/test_e2e_cluster.py::test_servers_with_and_without_cluster_refuse_each_other"
        ),
        "| the database is away |": (
            "tests/test_e2e_cluster.py::test_without_the_database_nobody_leads_and_newcomers_start_"
            "in_their_order_when_it_is_back"
        ),
    },
    "docs/security.md": {
        "It is `HttpOnly` and `SameSite=Lax`": (
            "tests/test_server_identify.py::test_a_cookie_of_an_old_key_is_given_anew_with_its_age"
        ),
        "- **The leader of a cluster** keeps `chmod`": "a limit, not a promise",
    },
}


def plain(text: str) -> str:
    """A text with single blanks."""
    return re.sub(r"\s+", " ", text).strip()


def promising(root: Path, document: str) -> Iterator[str]:
    """The sentences and rows of a document that promise something and name no test."""
    text = re.sub(r"```.*?```", "", (root / document).read_text("utf-8"), flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=[-|#])", text):
        if "test_" in part or part.lstrip().startswith("#"):
            continue
        whole = plain(part)
        rows = [whole] if whole.startswith("|") else re.split(r"(?<=\.)\s+(?=[A-Z*`])", whole)
        yield from filter(_PROMISING.search, rows)
