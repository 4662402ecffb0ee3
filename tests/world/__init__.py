"""The whole server in a simulated world: virtual time, a seeded order, faults, and promises."""
