"""Which pages there are, where, and what there is to see on each."""

from __future__ import annotations

PAGES = {
    "Lab": "./",
    "Compare": "compare",
    "Lessons": "lessons",
    "Pool": "pool",
    "Memory": "memory",
    "Claims": "claims",
    "Deploy": "deploy",
}
"""Every page's name and its address, relative to any of them. A page that is not always there is added before any is
laid out."""
ABOUT = {
    "Lab": "A language model decoding with nothing hidden: guesses, verdicts, cache, time.",
    "Compare": "Up to five settings on one prompt, in turn: speed, memory, whether they write the same.",
    "Lessons": "Say what you expect, run it, and see how decoding is made fast, and when it is not.",
    "Instructor": "For those who teach the course: timing, what to say, and the answers this machine gives.",
    "Pool": "Many sequences in one pool: whose each block is, who waits, what the cache forgets.",
    "Memory": "What keys and values take, and how many sequences fit. Arithmetic, not a measurement.",
    "Claims": "What articles say of KV caches and speculation, tested on this machine.",
    "Deploy": "The settings found here as a command for vLLM, on as many GPUs as it takes.",
    "Server": "A vLLM server, watched: cache, queue and guesses, as it reports them.",
    "Room": "Everybody's runs on one engine: whose each block is, who waits, and the totals.",
}
"""What there is to see on each page, in a line."""
