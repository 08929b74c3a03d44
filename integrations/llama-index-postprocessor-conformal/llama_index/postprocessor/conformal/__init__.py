"""Conformal filters for LlamaIndex."""
