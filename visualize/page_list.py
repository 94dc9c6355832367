"""The pages: names, addresses, and what there is to see on each."""

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
    "Lab": "Watch a real LLM engine: draft tokens, accept/reject decisions, KV cache, timing.",
    "Compare": "Compare up to five configurations on one prompt: speed, memory, identical output.",
    "Lessons": "Twelve lessons: predict, run, explain.",
    "Instructor": "For those who teach the course: timing, what to say, and the answers this machine gives.",
    "Pool": "Many requests, one KV pool: who owns each block, who waits, what is evicted.",
    "Memory": "The memory of keys and values, and how many requests fit: arithmetic, not measured.",
    "Claims": "Popular claims about KV caching and speculative decoding, tested here.",
    "Deploy": "The settings found here as a command for vLLM, on as many GPUs as it takes.",
    "Server": "Watch a vLLM server: cache, queue and acceptance, as it reports them.",
    "Room": "All runs of the workshop on one engine: who owns each block, who waits, and the totals.",
}
"""What there is to see on each page, in a line."""
