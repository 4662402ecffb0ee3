"""Discrete-event simulation of a server that runs the real policies."""
