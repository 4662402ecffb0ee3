"""Measures what attackers cost honest clients, in virtual time and on running servers."""
