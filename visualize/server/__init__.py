"""Many visitors at one machine: who waits, what goes on, how it is told, and the ways in for programs."""
