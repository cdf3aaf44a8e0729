"""What backfills claim beside the live pipeline, and their plans."""
