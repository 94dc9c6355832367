"""Many sequences in one pool: the page's inputs, and the sequences' events reduced to frames."""
