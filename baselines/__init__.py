"""The engines we are compared with: a folder each, saying how it is built, launched and read."""
