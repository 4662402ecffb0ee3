"""Jinja2 pages and static assets."""
