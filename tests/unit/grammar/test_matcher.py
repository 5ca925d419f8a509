"""Masks over the vocabulary, and what ends a text."""
