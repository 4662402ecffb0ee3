"""How clients used their slots: slots that idled away, and bytes that were delivered."""

from __future__ import annotations

from ...protocol.bounded_table import BoundedTable

#: Clients that are remembered. The one that idled longest ago is forgotten first.
_REMEMBERED = 10_000
#: Beyond this many times nothing gets worse.
_MOST = 8


class Reputation:
    """How often each client let a slot idle away lately before it had used it (`was_used`)."""

    def __init__(self) -> None:
        self._times: BoundedTable[str, int] = BoundedTable(_REMEMBERED)

    def times(self, client: str) -> int:
        """How often since its last honest download."""
        return self._times.get(client, 0)

    def idled(self, client: str) -> None:
        """A slot of this client has run out unused."""
        self._times[client] = min(_MOST, self.times(client) + 1)

    def used(self, client: str) -> None:
        """The client has finished a download."""
        self._times.pop(client, None)


class Delivered:
    """Bytes that the leases of each unfinished download have delivered."""

    def __init__(self) -> None:
        self._bytes: BoundedTable[tuple[str, str], int] = BoundedTable(_REMEMBERED)

    def __len__(self) -> int:
        """Downloads that have delivered anything."""
        return len(self._bytes)

    def bytes(self, client: str, file: str) -> int:
        """What this client has of this file."""
        return self._bytes.get((client, file), 0)

    def note(self, client: str, file: str, more_bytes: int) -> None:
        """A lease has ended after `more_bytes`; 0: the download is finished."""
        key = client, file
        if not more_bytes:
            self._bytes.pop(key, None)
            return
        self._bytes[key] = self._bytes.get(key, 0) + more_bytes
