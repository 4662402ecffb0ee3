"""Loads what `tidegate serve` loads, once, and forks a process for each server that a test wants.

Loading is most of a server's start, and the suite starts more than a hundred. After that each
process runs `tidegate.main()`, as the workers of `server.app.run` go on from a fork.
Two things differ from a server that was not forked (`test_e2e_start` and `test_e2e_deb` have some):
the pages of operators are loaded before their first visit, and hashes of passwords are cheap unless
the environment has `SLOW_PASSWORDS`.
Runs as `python -m tests.fork_server DESCRIPTOR`; `tests.running` holds the other end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys

from argon2 import PasswordHasher

import tidegate

#: What every `tidegate serve` has loaded before it reads its settings or builds its service.
LOADED = ("tidegate.server.app.cli.serve", "tidegate.server.app.run", "tidegate.server.app.service")
#: The first visit of an operator would load these and compile all templates, in 0.3 s of CPU.
FOR_OPERATORS = ("tidegate.server.admin.site", "prometheus_client")
#: Longest order: its words and its environment.
ORDER_BYTES = 1 << 18


def fork_servers(link: socket.socket) -> None:
    """Make one process for each order; come back in each of them, and at the end of orders.

    An order has three descriptors: for output, for errors, and one that is told the process
    number and at the end the exit status, a line each.
    """
    while True:
        order, descriptors, _, _ = socket.recv_fds(link, ORDER_BYTES, 3)
        if not order:
            sys.exit()
        if os.fork() == 0:
            link.close()
            _watch(*descriptors)
            words = json.loads(order)
            os.chdir(words["folder"])
            os.environ.clear()
            os.environ.update(words["environ"])
            sys.path[0] = words["folder"]
            sys.argv[:] = ["tidegate", *words["arguments"]]
            if "SLOW_PASSWORDS" not in os.environ:
                stored = importlib.import_module("tidegate.server.accounts.stored")
                vars(stored)["password_hasher"] = _quick_hasher
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _quick_hasher() -> PasswordHasher:
    """A hash takes 0.2 s of CPU, and most tests with an operator need several."""
    return PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def _watch(output: int, errors: int, status: int) -> None:
    """Go on as a child whose parent tells `status` of its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor, number in ((output, 1), (errors, 2)):
            os.dup2(descriptor, number)
        for descriptor in (output, errors, status):
            os.close(descriptor)
        return
    os.close(output)
    os.close(errors)
    os.write(status, f"{child}\n".encode())
    _, ended = os.waitpid(child, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    for module in (*LOADED, *FOR_OPERATORS):
        importlib.import_module(module)
    importlib.import_module("tidegate.server.admin.render").make_pages()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for those who watch.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fork_servers(socket.socket(fileno=int(sys.argv[1])))
    tidegate.main()
