"""Structured output: schemas, regular expressions and grammars as masks over the vocabulary."""
