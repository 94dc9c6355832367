"""One run: its settings, its events reduced to frames, and the words and numbers shown for each."""
