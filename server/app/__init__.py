"""Configuration, composition and the life of the process."""
