"""Asking an LLM many small questions: prompts, replies, servers and a cache."""
