"""What other collections say of a learned score's coefficients, before any query is judged.

For each feature, the mean and the standard deviation of the coefficients that whole collections
give (`snippets.json`, `sentences.json` and `queries.json`, which `benchmarks/prior.py` makes). All
retrievers have the same prior: it does not know which one is dense. With R of them, their means are
divided by R, and the standard deviations are not: with two and three retrievers, the sum of their
coefficients is about the same, and their spread does not fall. One alone has numbers of its own.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import numpy as np
import pydantic

from conformal_retrievers.scoring.hit_features import Values
from conformal_retrievers.scoring.learned.features import GIVEN, Column

Item = Literal["snippets", "sentences", "queries"]


class Normal(pydantic.BaseModel):
    """A normal distribution."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    mean: pydantic.FiniteFloat
    sd: pydantic.PositiveFloat


class Prior(pydantic.BaseModel):
    """The distribution of each feature's coefficient over collections."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    format: Literal["conformal-retrievers/prior"]
    version: int
    item: Item
    made_by: str
    sets: list[dict[str, str]]
    one_retriever: Mapping[str, Normal]
    several_retrievers: Mapping[str, Normal]  # the sum of a feature's means over retrievers

    @property
    def name(self) -> str:
        """What it is about, and its version."""
        return f"{self.item} {self.version}"

    def of(self, columns: Sequence[Column]) -> tuple[Values, Values]:
        """Return means and standard deviations (d,) of the coefficients of `columns`."""
        named = [column for column in columns if column.source]
        retrievers = {c.source for c in named if not c.feature.startswith(GIVEN)}
        scorers = {c.source for c in named} - retrievers
        coefficients = self.several_retrievers if len(retrievers) > 1 else self.one_retriever
        means, sds = [], []
        for feature, source in columns:
            times = len(retrievers if source in retrievers else scorers) if source else 1
            # Without retrievers, scorers are what ranks.
            own = coefficients.get(feature if retrievers else feature.removeprefix(GIVEN))
            own = own or coefficients[feature]
            means.append(own.mean / times)
            sds.append(own.sd)
        return np.array(means), np.array(sds)


@lru_cache
def prior_of(item: Item) -> Prior:
    """Return the prior for snippets, for sentences, or for queries."""
    text = files(__package__).joinpath(f"{item}.json").read_text(encoding="utf-8")
    return Prior.model_validate_json(text)
