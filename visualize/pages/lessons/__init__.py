"""The course on its page: the learner's progress, what is measured, and what is shown of it."""
