"""Many sequences in one pool: what is asked for, and their events reduced to frames."""
