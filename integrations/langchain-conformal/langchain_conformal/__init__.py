"""Conformal filters for LangChain."""
