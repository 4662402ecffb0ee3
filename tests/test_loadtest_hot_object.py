"""What a receiver process of the hot object profile told, read by the profile."""

from __future__ import annotations

import json
import subprocess

from tests.installed import PYTHON

PROGRAM = """
import json, sys
from tidegate.loadtest.hot_object import by_multicast, last_event
for output in json.load(sys.stdin):
    told = last_event(output.encode())
    print(json.dumps([told, by_multicast(told)]))
"""
SOURCES = [{"url": "udp://239.1.2.3:5", "bytes": 900}, {"url": "http://h/f", "bytes": 100}]
DONE = {"event": "done", "mirrors": SOURCES}


def test_whatever_a_receiver_says_is_put_in_words_and_bytes_by_multicast_are_told_apart() -> None:
    """In one process of its own: Locust changes sockets and threads for all that run beside it."""
    told = {
        f'{{"event": "start"}}\n{json.dumps(DONE)}': [DONE, 900],
        "": [{"text": "nothing"}, 0],
        "Segmentation fault": [{"text": "Segmentation fault"}, 0],
        '["no event"]': [{"text": '["no event"]'}, 0],
    }
    done = subprocess.run(
        [PYTHON, "-c", PROGRAM],
        input=json.dumps([*told]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [*told.values()]
