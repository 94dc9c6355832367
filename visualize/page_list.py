"""The pages: names, addresses, and what there is to see on each."""

PAGES = {
    "Lab": "./",
    "Compare": "compare",
    "Lessons": "lessons",
    "Pool": "pool",
    "Memory": "memory",
    "Claims": "claims",
    "Mistakes": "mistakes",
    "Deploy": "deploy",
}
"""Every page's name and its address, relative to any of them. A page that is not always there is added before any is
laid out."""
ABOUT = {
    "Lab": "Watch a real LLM engine decode.",
    "Compare": "Up to six configurations on one prompt.",
    "Lessons": "Twenty-two lessons: predict, run, explain.",
    "Capstone": "Settings for a server, simulated and graded.",
    "Instructor": "For those who teach the course.",
    "Pool": "Many requests, one KV pool.",
    "Memory": "How many requests fit: arithmetic, not measured.",
    "Claims": "What articles claim, tested here.",
    "Mistakes": "Code from articles: run it, repair it.",
    "Deploy": "The settings as a command for vLLM.",
    "Server": "A vLLM server, as it reports itself.",
    "Room": "All runs of the workshop on one engine.",
    "Glossary": "What the words mean, and the six formulas.",
}
"""What there is to see on each page, in a line."""
LINKS = {"Glossary": "glossary", "Lessons": "lessons", "README": "source/README.md", "Source": "source/"}
"""What the help of every page links to. The repository is added, where the server knows its address, before any page is
laid out."""
