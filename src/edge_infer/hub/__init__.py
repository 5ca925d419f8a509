"""Where models come from: folders, GGUF files, the hub, built-in ones."""
