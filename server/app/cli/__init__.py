"""The server side subcommands of `tidegate`."""
