"""Bytes that nobody would send. A short, repeatable run in CI; `make fuzz` for a long one."""
