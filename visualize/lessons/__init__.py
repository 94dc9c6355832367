"""The course on its page: where a learner stands, what is measured, and what is shown of it."""
