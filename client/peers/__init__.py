"""Pieces from others who download the same file, while the server's turn has not come."""
