"""The Messages API: its requests read, its answers written."""
