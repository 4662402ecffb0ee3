"""What a receiver process of the hot object profile told, read by the profile."""

from __future__ import annotations

import json
import subprocess

from tests.installed import PYTHON

PROGRAM = """
import json, sys
from tidegate.loadtest.hot_object import by_multicast, last_event
told = last_event(sys.stdin.buffer.read())
print(json.dumps([told, by_multicast(told)]))
"""


def read(output: str) -> list[object]:
    """In a process of its own: Locust changes sockets and threads for all that run beside it."""
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM], input=output, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_bytes_by_multicast_are_told_apart() -> None:
    sources = [{"url": "udp://239.1.2.3:5", "bytes": 900}, {"url": "http://h/f", "bytes": 100}]
    lines = ['{"event": "start"}', json.dumps({"event": "done", "mirrors": sources})]
    assert read("\n".join(lines))[1] == 900


def test_whatever_a_receiver_says_is_put_in_words() -> None:
    assert read("") == [{"text": "nothing"}, 0]
    assert read("Segmentation fault") == [{"text": "Segmentation fault"}, 0]
    assert read('["no event"]') == [{"text": '["no event"]'}, 0]
