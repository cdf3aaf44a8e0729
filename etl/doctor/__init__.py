"""What `etl doctor` looks at, a module for each part of the world; `diagnose` says in which order."""
