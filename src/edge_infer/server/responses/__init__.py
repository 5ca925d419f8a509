"""The Responses API: its requests read, its answers written."""
