"""The sentences of `wording.txt`, by their names."""

from conformal_retrievers.calibration.wording import wording

say = wording(__package__)
