"""Settings: immutable values, one conf file per pipeline, unknown keys are rejected."""
