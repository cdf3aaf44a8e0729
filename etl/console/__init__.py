"""What a person sees on a terminal. Nothing is computed here that `--json` does not have too."""
