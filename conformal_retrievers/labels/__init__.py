"""Relevance judgements from an LLM or a reference answer, and audits of them."""
