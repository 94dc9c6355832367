"""The lab as a folder of files that needs no server: recorded runs, lessons, claims. ``python -m visualize.export``."""
