"""One download from its mirrors, from the first request to the named file."""
