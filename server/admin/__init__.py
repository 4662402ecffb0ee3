"""The admin listener: pages and JSON API."""
