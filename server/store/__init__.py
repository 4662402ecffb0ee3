"""The database: only this room knows its tables."""
