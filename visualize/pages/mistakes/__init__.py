"""The Mistakes page: code from articles with a fault, run on the embedded pair and repaired."""
