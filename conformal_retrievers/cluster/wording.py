"""The sentences of `wording.txt`, by their names."""

from conformal_retrievers.data.wording import wording

say = wording(__package__)
