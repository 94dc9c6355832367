"""Many visitors on one machine: who waits, what runs, and how it is reported."""
