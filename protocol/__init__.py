"""What client and server must agree on: encode and decode, side by side. Pure."""
