"""Ways to turn float weights into integers and scales."""
