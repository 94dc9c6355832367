"""One run: what a person sets, its events reduced to frames, and what is said and shown of each."""
