"""What fits: the Memory page's inputs and its answer."""
