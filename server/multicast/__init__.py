"""UDP multicast: when a file is hot, it is sent once."""
