"""The protocol as a model: small enough that every interleaving can be looked at."""
