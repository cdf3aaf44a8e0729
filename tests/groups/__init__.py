"""Members of groups as processes of their own, for tests beside consumers that are not ours."""
