"""The client library and command line."""
