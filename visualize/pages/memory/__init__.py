"""The Memory page's inputs and its answer."""
