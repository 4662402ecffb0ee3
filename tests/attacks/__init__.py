"""Attacks on a real server: each of these succeeded once."""
