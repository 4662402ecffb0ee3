"""Laws: which tickets let others go first, and who keeps a slot. One law a file."""
