"""The faults themselves. Where a module changes, its fault here is written anew or goes."""

from __future__ import annotations

from . import PastFault

PAST: tuple[PastFault, ...] = (
    PastFault(
        "parked-not-called",
        "tests/test_server_parked_machine.py",
        "server.admission.gate",
        "        requests = self.parked.with_ticket(ticket)\n        for request in requests:\n"
        "            self.offer_again(request)\n        return bool(requests)",
        "        return bool(self.parked.with_ticket(ticket))",
    ),
    PastFault(
        "wall-clock-expires",
        "tests/test_e2e_clock.py::test_downloads_places_and_parked_requests_live_through_it",
        "server.app.queue_room",
        '"now": reactor.seconds,',
        '"now": now,',
    ),
    PastFault(
        "numbers-twice",
        "tests/test_e2e_crash.py::test_a_lost_journal_gives_no_number_away_twice",
        "server.app.queue_room",
        "first = max(memory.journal.next_number, read_mark(config.state))",
        "first = memory.journal.next_number",
    ),
    PastFault(
        "lost-start-costs-place",
        "8aa0221",
        "policies.admission",
        "if idled and lease.untouched and self._may_come_back(row):",
        "if idled and lease.untouched and now < 0:",
    ),
    PastFault(
        "used-ticket-honoured",
        "tests/test_e2e_crash.py",
        "server.admission.leases",
        "        download.ending = True\n        self._keep([row._replace(remaining_bytes=0)])\n"
        "        self._parts.journal.after_commit(safe)",
        "        safe()",
    ),
    PastFault(
        "versions-mixed",
        "tests/test_e2e_touched.py",
        "server.files.sender",
        "        if self._file.unchanged():\n            return True\n"
        "        self._checking = True",
        "        if self._file.fd:\n            return True\n        self._checking = True",
    ),
    PastFault(
        "switch-forgets-parked",
        "tests/test_server_parked_machine.py",
        "server.admission.gate",
        "        self.leases.switch(name, settings)\n        for request in self.parked:\n"
        "            self.offer_again(request)\n",
        "        self.leases.switch(name, settings)\n",
    ),
    PastFault(
        "answer-before-journal",
        "tests/test_e2e_crash.py",
        "server.admission.gate",
        "the answer waits for the journal.\n            self.parts.journal.after_commit(answer)",
        "the answer waits for the journal.\n            answer()",
    ),
    PastFault(
        "failed-batch-dropped",
        "tests/test_server_store.py::test_a_dead_database_degrades_and_recovers_without_losing_a_ticket",
        "server.store.store",
        "self._tickets = tickets | self._tickets",
        "self._tickets = dict(self._tickets)",
    ),
    PastFault(
        "gone-stays-parked",
        "tests/attacks/test_parked.py",
        "server.admission.gate",
        "        visit.request.on_gone(lambda: self.left(request, False))\n",
        "",
    ),
    PastFault(
        "lost-ticket-behind-younger",
        "7761a57",
        "server.admission.gate",
        "            if younger:\n                return TicketState.READY",
        "            if younger and not row:\n                return TicketState.READY",
    ),
    PastFault(
        "standstill-costs-slots",
        "fb6c8e2",
        "server.admission.leases",
        "self._late_s = max(min(now - self._due_s, MOST_LATE_S), _LESS_LATE * self._late_s)",
        "self._late_s = 0.0",
    ),
    PastFault(
        "socket-with-room-not-served",
        "8314c64",
        "server.files.sender",
        "                self.limit_unsent(self._unsent_goal_bytes)\n            self._go()",
        "                self.limit_unsent(self._unsent_goal_bytes)",
    ),
    PastFault(
        "addresses-counted-for-ever",
        "tests/attacks/test_connections.py",
        "server.http.factory",
        "        self.per_address.remove(connection.block)\n",
        "",
    ),
    PastFault(
        "compared-not-gone-on",
        "93e1e2c",
        "server.files.sender",
        "            elif waits:\n                self._go_on()\n\n        self._still",
        "            elif waits:\n                pass\n\n        self._still",
    ),
    PastFault(
        "fetched-not-gone-on",
        "tests/test_e2e_disk.py",
        "server.files.sender",
        "            self._at_hand = (offset, stop)\n            if waits:\n"
        "                self._go_on()\n",
        "            self._at_hand = (offset, stop)\n",
    ),
    PastFault(
        "left-before-start-keeps-slot",
        "791b0ba",
        "server.admission.gate",
        "        if visit.request.finished:\n            self.leases.left(download)",
        "        if visit.request.finished:\n            pass",
    ),
    PastFault(
        "cancel-frees-no-slot",
        "tests/test_server_leases.py",
        "server.admission.leases",
        "        self._driver.cut(download.lease, self.now())\n",
        "",
    ),
    PastFault(
        "idle-lease-never-ends",
        "tests/test_e2e_crash.py::test_no_slot_stays_taken_after_a_crash",
        "policies.admission",
        "        if not idled:\n            return ()",
        "        if idled is not None:\n            return ()",
    ),
    PastFault(
        "restart-forgets-ready",
        "tests/test_policies_ticket.py",
        "server.store.journal",
        "LIVE = (TicketState.WAITING, TicketState.READY, TicketState.STARTED)",
        "LIVE = (TicketState.WAITING, TicketState.STARTED)",
    ),
    PastFault(
        "nobody-looks-for-a-slot",
        "tests/test_server_parked_machine.py",
        "server.admission.gate",
        "            request.look_in(min(_LOOK_S, wait.retry_after_s))",
        "            pass",
    ),
    PastFault(
        "ended-connection-calls-nobody",
        "tests/test_server_gate.py",
        "server.admission.leases",
        "                        self._parked.connection_ended(client, file)",
        "                        pass",
    ),
    PastFault(
        "paused-is-silent",
        "0f8a52f",
        "server.files.pacer",
        "        heapq.heappush(self._paused, (due_s, self._pauses, paced))\n"
        "        if self._paused[0][2] is paced:\n            self._wake_for_trickle()",
        "        heapq.heappush(self._paused, (due_s, self._pauses, paced))",
    ),
    PastFault(
        "held-lines-stop",
        "tests/test_e2e_parked.py",
        "server.admission.parked",
        "        self._trickle_call = self._parked.call_later(self.rule.drip_s, self._trickle)\n",
        "",
    ),
    PastFault(
        "files-stay-open",
        "791b0ba",
        "server.files.openfile",
        "    def __del__(self) -> None:\n        os.close(self.fd)",
        "    def _never(self) -> None:\n        os.close(self.fd)",
    ),
    PastFault(
        "pacer-stops-ticking",
        "tests/test_server_pacer.py",
        "server.files.pacer",
        "        if requests.busy:\n            self._tick_soon()\n\n    def _serve",
        "        if requests.busy > 1:\n            self._tick_soon()\n\n    def _serve",
    ),
    PastFault(
        "resume-forgotten",
        "tests/test_policies_laws.py",
        "server.admission.leases",
        "            self._paused.discard(lease)\n            download.resume(now)\n",
        "            self._paused.discard(lease)\n",
    ),
    PastFault(
        "store-never-tries-again",
        "tests/test_server_store.py::test_a_dead_database_degrades_and_recovers_without_losing_a_ticket",
        "server.store.store",
        "            self._schedule(self._retry_s)\n",
        "",
    ),
    PastFault(
        "behind-its-own-told-for-ever",
        "1803998",
        "server.admission.gate",
        "left_s = min(download.remaining_bytes() / download.rate_bytes_s, _LONGEST_TOLD_S)",
        "left_s = download.remaining_bytes() / download.rate_bytes_s * 1e17",
    ),
    PastFault(
        "restored-place-given-to-two",
        "5da48c0",
        "policies.admission",
        "        queue.next_number = max(queue.next_number, next_number)",
        "        queue.next_number = next_number",
    ),
)
