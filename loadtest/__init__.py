"""Workloads, run twice: in virtual time (sim) and in real time (Locust)."""
