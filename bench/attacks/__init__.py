"""What an attacker costs the others, in virtual time and at a running server."""
