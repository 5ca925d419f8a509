"""Readers of foreign checkpoints, each giving an ImportedModel."""
