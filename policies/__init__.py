"""Who may start now. Pure: no I/O, no clock; time enters as `now` in seconds."""
