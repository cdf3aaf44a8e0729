"""The protocol as a model: small enough to explore every interleaving."""
