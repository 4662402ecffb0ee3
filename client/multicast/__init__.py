"""Receiving a multicast session, and repair around it."""
