"""The mirror's side: follow a channel, keep a tree in step, say how it is."""
