"""The `tidegate get` command: options, progress, exit codes."""
