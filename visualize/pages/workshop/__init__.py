"""Many people on one engine: a code to join by, a presenter to follow, and the pool that all of them share."""
