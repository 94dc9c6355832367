"""What fits: the Memory page's question and its answer."""
