"""Which bytes to ask which mirror for, and when. Pure."""
