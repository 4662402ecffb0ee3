"""From a request path to the bytes of a file. Knows nothing of queues."""
