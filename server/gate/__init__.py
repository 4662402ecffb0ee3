"""The gate: this server decides, and another program sends the files."""
