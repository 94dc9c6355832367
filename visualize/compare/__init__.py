"""Settings side by side: which, what was measured of them, and what theory says."""
