"""Two people's judgements of the same snippets: agreement, kappa, and where they differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from commands import as_json, run
from judging import finish, queries
from sklearn.metrics import cohen_kappa_score

from conformal_retrievers.data.jsonl import write_jsonl
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.labels import agreement
from conformal_retrievers.labels.agree import kappa
from conformal_retrievers.labels.judging import Judging


def written(path, *relevant, ids=None):
    judged = [
        replace(query, relevant=marks)
        for query, marks in zip(queries(len(relevant), len(relevant[0])), relevant, strict=True)
    ]
    write_jsonl([q for q in judged if ids is None or q.id in ids], path)
    return path


def test_agreement_by_hand(tmp_path):
    """Of 8 snippets, 6 are judged alike; each calls 4 relevant, so half are alike by chance."""
    ann = written(tmp_path / "ann.jsonl", [True, True, False, False], [True, True, False, False])
    ben = written(tmp_path / "ben.jsonl", [True, True, False, False], [True, False, True, False])
    found = agreement(ann, ben)
    assert (found.queries, found.only_one, found.snippets) == (2, 0, 8)
    assert found.alike.estimate == 0.75
    assert found.kappa == pytest.approx(0.5)
    assert found.names == ("ann.jsonl", "ben.jsonl")
    assert [(d.query.id, d.snippet.id, d.relevant) for d in found.differences] == [
        ("q1", "1-1", True),
        ("q1", "1-2", False),
    ]
    assert agreement(ben, ann).kappa == found.kappa
    assert agreement(ann, ann).kappa == 1


def test_kappa_is_that_of_scikit_learn(rng):
    for _ in range(20):
        one, other = rng.random((2, 50)) < 0.4
        alike = np.mean(one == other)
        assert kappa(one.mean(), other.mean(), alike) == pytest.approx(
            cohen_kappa_score(one, other)
        )
    assert math.isnan(kappa(1, 1, 1))


def test_only_what_both_saw_counts(tmp_path):
    """One person sees more snippets than the other, and is unsure of a question."""
    judged, shown = queries(4, 30, marked=[0]), []
    for name in ("Ann", "Ben"):
        share = 0.2 if name == "Ann" else 0.5
        judging = Judging(judged, tmp_path / f"{name}.jsonl", by=name, share=share)
        unsure = judging.sample.order.index(2)
        finish(
            judging,
            lambda asked, given, name=name, unsure=unsure: [
                None if name == "Ben" and asked["number"] == unsure else True for _ in given
            ],
        )
        judging.close()
        shown.append([set(judging.sample.shown[i]) for i in (0, 1, 3)])
    found = agreement(tmp_path / "Ann.jsonl", tmp_path / "Ben.jsonl")
    assert found.names == ("Ann", "Ben")
    assert (found.queries, found.only_one) == (3, 1)
    assert found.snippets == sum(len(a & b) for a, b in zip(*shown, strict=True)) < 3 * 7
    assert found.alike.estimate == 1


def test_equal_snippets_and_queries_are_told_apart_by_their_order(tmp_path):
    def of(name, *marks, others=("z",)):
        queries = [JudgedQuery("q", ["same", "same", other], [*marks, False]) for other in others]
        write_jsonl([*queries, JudgedQuery("r", [name], [True])], tmp_path / name)
        return tmp_path / name

    one, two = of("one", True, False), of("two", False, False)
    found = agreement(one, two)
    assert (found.snippets, found.alike.estimate, len(found.differences)) == (3, 2 / 3, 1)
    assert (found.queries, found.only_one) == (1, 1)  # neither saw the other's snippet of r
    twice = of("twice", True, False, others="zz")
    assert agreement(twice, twice).queries == 3


def test_files_without_a_common_snippet_are_refused(tmp_path):
    one = written(tmp_path / "one.jsonl", [True], [False], ids=["q0"])
    other = written(tmp_path / "other.jsonl", [True], [False], ids=["q1"])
    with pytest.raises(ValueError, match="in common"):
        agreement(one, other)


def test_the_command_prints_the_numbers_and_the_differences(tmp_path):
    ann = written(tmp_path / "ann.jsonl", [True, True, False, False], [True, True, False, False])
    ben = written(tmp_path / "ben.jsonl", [True, False, False, False], [True] * 4, ids=["q0"])
    said = " ".join(run("agreement", ann, ben).stdout.split())
    assert "75.0 %" in said
    assert "kappa is 0.50" in said
    assert "both judged: 1; only one: 1." in said
    assert "Question 0? - relevant for ann.jsonl, not for ben.jsonl: Text 0 1." in said
    none = written(tmp_path / "none.jsonl", [False, False])
    assert "kappa is undefined" in " ".join(run("agreement", none, none).stdout.split())
    assert as_json("agreement", ann, ben)["kappa"] == pytest.approx(0.5)
