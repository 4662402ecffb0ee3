"""Connections, HTTP/1.1, and the manners of a client that is told to come back."""
