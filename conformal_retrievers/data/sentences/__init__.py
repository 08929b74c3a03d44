"""Snippets cut into sentences, and evidence of the relevant ones."""

from conformal_retrievers.data.sentences.cutting import Split, cut, splitter

__all__ = ["Split", "cut", "splitter"]
