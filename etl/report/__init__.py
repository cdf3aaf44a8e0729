"""What a run reports: outcomes, timings, progress. Values to JSON, text and HTML."""
