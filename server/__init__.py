"""The Twisted server: turns admission decisions into HTTP and bytes."""
