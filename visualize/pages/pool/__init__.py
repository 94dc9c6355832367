"""Many requests, one KV pool: the page's inputs, and their events reduced to frames."""
