"""Records for a person or a small program, as consumers give them. Rows of tables never come this way."""
