"""Memory: what may be used (limits) and what is used (measure)."""
