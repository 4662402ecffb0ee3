"""Processes and machines that share one queue: nodes serve, a leader decides."""
