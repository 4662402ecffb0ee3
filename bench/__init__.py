"""Benchmarks and labs. Those that need root keep it for the servers that they start."""

import os

if os.geteuid() == 0:
    os.environ.setdefault("TIDEGATE_USER", "root")
