"""The course: lessons in Markdown (``NN-name.md``), and what reads, runs and marks them. README.md has the format."""
