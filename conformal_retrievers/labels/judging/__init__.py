"""A page on this machine on which a person judges snippets, or judges again what an LLM marked.

A person sees every snippet that is marked, and a random share of the others, in each question. The
marks are on disk before the next snippet is shown. Questions come in random order: those that are
judged when the person stops are a random sample of all.
"""

from conformal_retrievers.labels.judging.judging import Judging
from conformal_retrievers.labels.judging.server import JudgingServer

__all__ = ["Judging", "JudgingServer"]
