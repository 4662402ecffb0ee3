"""Pieces from other clients of the same file, while the server's turn has not come."""
