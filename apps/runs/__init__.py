"""One run: begin it, look at it, use what it has made."""
