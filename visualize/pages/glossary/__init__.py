"""The Claims page: its claims, and what checking them found."""
