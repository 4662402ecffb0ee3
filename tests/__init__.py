"""The suite. A package, because some that are installed have a `tests` of their own."""
