"""Settings side by side: which ones, what was measured, and what theory says."""
