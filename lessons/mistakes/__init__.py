"""Eight mistakes that people copy from articles: their code, repairs, and the evidence of what each does."""
