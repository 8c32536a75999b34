"""Published runs: a folder, or a repository at Hugging Face, with a model card and weights."""
