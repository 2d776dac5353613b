"""HTTP: OpenAI-compatible, the web chat and its page, and what operators need."""
