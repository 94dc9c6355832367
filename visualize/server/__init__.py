"""Many visitors on one machine: who waits, what runs, how it is reported, and the interfaces for programs."""
