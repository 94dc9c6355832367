"""The browser's side: events in, pictures out. Nothing in ``lab`` knows that it exists."""
