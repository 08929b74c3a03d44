"""The default score: which queries fit it, that no others do, and what is said of it."""

import asyncio
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from lookup import LookupScorer

from conformal_retrievers import ConformalFilter, FunctionScorer, compare, diagnose, evaluate
from conformal_retrievers.calibration import Calibration, calibrate, needed_scorers
from conformal_retrievers.calibration.fitting import _better, kept, split
from conformal_retrievers.data import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.data.hits import fuse
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import FusionScorer, LearnedScorer, RankScorer, score_queries
from conformal_retrievers.scoring.learned.features import columns
from conformal_retrievers.scoring.learned.prior import prior_of
from conformal_retrievers.scoring.scorer import query_digest


def queries(n, seed=0, strength=2.0, depth=12):
    """Queries with one or two relevant snippets, which two retrievers tend to find early."""
    rng, judged = np.random.default_rng(seed), []
    for i in range(n):
        relevant, lists = np.arange(depth) < 1 + rng.integers(2), {}
        for name in ("bm25", "dense"):
            scores = rng.normal(size=depth) + strength * relevant
            lists[name] = [(int(j), float(scores[j])) for j in np.argsort(-scores)[:-2]]
        found = fuse(lists)
        snippets = [Snippet(f"text {j}", hits=hits) for j, hits in found.items()]
        judged.append(JudgedQuery(f"query {i}", snippets, [relevant[j] for j in found], id=f"q{i}"))
    return judged


JUDGED = queries(120)
NEW = [replace(q, query=f"new {q.query}", id=f"new {q.id}") for q in queries(40, seed=9)]
ORACLE = LookupScorer({f"text {j}": float(j > 1) for j in range(12)}, "oracle")


def without_relevant(query):
    return replace(query, relevant=[False] * len(query.snippets))


# --- the parts ------------------------------------------------------------------------------------


def test_a_quarter_is_the_fit_part_whatever_the_order_and_the_others_calibrate():
    fit, calibration = split(JUDGED)
    assert len(fit) == 30
    assert sorted(q.id for q in (*fit, *calibration)) == sorted(q.id for q in JUDGED)
    assert [q for q in JUDGED if q in calibration] == calibration
    assert split(JUDGED[::-1]) == (fit, calibration[::-1])
    many = [replace(JUDGED[0], query=f"query {i}", id=str(i)) for i in range(1000)]
    assert len(split(many).fit) == 200


def test_copies_of_a_query_are_in_one_part():
    copies = [replace(query, query=f" {query.query.upper()}", id=None) for query in JUDGED]
    fit, calibration = split([*JUDGED, *copies])
    texts = [{q.query.strip().lower() for q in part} for part in (fit, calibration)]
    assert not texts[0] & texts[1]
    assert len(fit) == 60


def test_the_fit_part_leaves_each_group_the_queries_with_a_relevant_snippet_that_it_needs():
    judged = [*JUDGED[:10], *map(without_relevant, JUDGED[10:20]), *JUDGED[20:100]]
    groups = ["small" if i < 20 else "large" for i in range(100)]
    fit, calibration = split(judged, needed=9, groups=groups)
    assert sum(any(query.relevant) for query in judged[:20] if query in calibration) >= 9
    assert len(fit) == 1 + 20
    assert fit == sorted(fit, key=lambda query: query_digest(query.query))


@pytest.mark.parametrize(("n", "without"), [(19, 0), (40, 21)])
def test_below_20_judged_queries_with_a_relevant_snippet_all_calibrate_the_prior_alone(n, without):
    judged = [*map(without_relevant, JUDGED[:without]), *JUDGED[without:n]]
    calibration = calibrate(judged, alpha=0.1)
    learned = ConformalFilter.of(calibration).scorer
    assert learned.coefficients == tuple(prior_of("snippets").of(columns(learned.sources))[0])
    assert (calibration.choice.n_fit, calibration.n_queries) == (0, 19)
    assert "fitted to none of these queries. With 20 judged " in calibration.statement
    assert calibrate(JUDGED[: n + 1], alpha=0.1).choice.n_fit == (n + 1) // 4


def test_a_low_alpha_leaves_no_queries_to_fit_on_and_the_statement_has_the_number_that_it_takes():
    calibration = calibrate(JUDGED[:99], alpha=0.01)
    assert (calibration.choice.n_fit, calibration.keeps_everything) == (0, False)
    assert "if the 99 that the threshold needs are left" in calibration.statement


def test_groups_keep_their_thresholds():
    grouped = [replace(query, group="ab"[i % 2]) for i, query in enumerate(JUDGED)]
    calibration = calibrate(grouped, alpha=0.1, by_group=True)
    assert sum(calibration.n_units.values()) == 90
    assert all(math.isfinite(calibration.threshold(group)) for group in "ab")


# --- the guarantee --------------------------------------------------------------------------------


def test_the_fit_never_sees_the_calibration_part():
    parts, chosen = split(JUDGED), calibrate(JUDGED, alpha=0.1)
    others = [
        replace(query, snippets=other.snippets, relevant=other.relevant)
        for query, other in zip(parts.calibration, queries(120, 5, strength=1.0), strict=False)
    ]
    again = calibrate([*parts.fit, *others], alpha=0.1)
    assert again.scorer_provenance["score"] == chosen.scorer_provenance["score"]
    # What passes follows from the threshold.
    assert again.choice == chosen.choice.model_copy(update={"passes": again.choice.passes})
    assert chosen.ids == {query.id for query in parts.calibration}
    assert not chosen.ids & set(chosen.choice.fit_ids)


def test_the_file_is_enough_for_scores_bit_for_bit(tmp_path):
    calibration = calibrate(JUDGED, alpha=0.1)
    calibration.save(tmp_path / "calibration.json")
    loaded = Calibration.load(tmp_path / "calibration.json")
    assert (loaded, needed_scorers(loaded)) == (calibration, [])
    fitted, opened = LearnedScorer.fit(split(JUDGED).fit), ConformalFilter.of(loaded)
    for query in NEW:
        expected = fitted.score(query.query, query.snippets).tolist()
        assert opened(query.query, query.snippets).scores.tolist() == expected
        assert asyncio.run(opened.acall(query.query, query.snippets)).scores.tolist() == expected


def test_a_query_of_the_fit_part_does_not_evaluate():
    calibration = calibrate(JUDGED, alpha=0.1)
    scorer, fit = ConformalFilter.of(calibration).scorer, split(JUDGED).fit
    assert all(map(calibration.chosen_on, fit))
    assert not any(map(calibration.chosen_on, NEW))
    scored = [replace(q, id=fit[0].id) for q in score_queries(scorer, NEW[:1])]
    for measured in (
        lambda: evaluate(calibration, scored),
        lambda: diagnose(calibration, scored),
        lambda: compare(calibration, calibration, scored),
    ):
        with pytest.raises(ValueError, match=fit[0].id):
            measured()
    with pytest.raises(ValueError, match="1 of these queries, such as query 'new', ask"):
        evaluate(calibration, [replace(split(JUDGED).calibration[0], id="new")])
    assert evaluate(calibration, score_queries(scorer, NEW)).held_out_verified
    without_ids = calibrate([replace(query, id=None) for query in JUDGED], alpha=0.1)
    assert without_ids.n_without_id == len(JUDGED)
    assert all(map(without_ids.chosen_on, fit))


def test_an_id_that_occurs_in_both_parts_is_an_error():
    fit, calibration = split(JUDGED)
    again = [replace(calibration[0], id=fit[0].id), *fit, *calibration[1:]]
    with pytest.raises(ValueError, match=fit[0].id):
        calibrate(again, alpha=0.1)


# --- what is said of it ---------------------------------------------------------------------------


def test_what_is_kept_by_hand():
    marks = ([True, False, True], [True, False, False])
    scores = [[1.0, 2, 4], [3.0, 4, math.nan]]  # masses ¼ at 1 and 4, ½ at 3; NaN is kept

    def at(alpha):
        return kept([*map(ScoredQuery, scores, marks)], alpha).tolist()

    assert [at(alpha) for alpha in (0.75, 0.74, 0.25, 0.24)] == [[1, 1], [2, 2], [2, 2], [3, 3]]
    scores[1][0] = math.nan  # its mass is there from the start
    assert [at(alpha) for alpha in (0.5, 0.49)] == [[0, 2], [1, 2]]
    marks, scores = (*marks, [False] * 2), [*scores, [2.0, 3]]  # no mass, and a cost
    assert [at(alpha) for alpha in (0.5, 0.49)] == [[0, 2, 0], [1, 2, 0]]
    assert at(0.2) == [3, 3, 2]


def test_a_given_scorer_is_asked_once_for_each_query_and_the_statement_says_what_it_adds():
    asked = []

    def score(query, texts):
        asked.append(query)
        return [ORACLE.scores[text] for text in texts]

    oracle = FunctionScorer(score, "oracle")
    calibration = calibrate(JUDGED, iter([oracle]), alpha=0.1)
    assert sorted(asked) == sorted(query.query for query in JUDGED)
    added = calibration.choice.adds["oracle"]
    assert added.with_it == calibration.choice.costs["learned"] < added.without
    assert added.without == calibrate(JUDGED, alpha=0.1).choice.costs["learned"]
    text = f"Without oracle it keeps {added.without:.1f} there, with it {added.with_it:.1f}."
    assert text in calibration.statement
    assert needed_scorers(calibration) == ["oracle"]
    assert ConformalFilter.of(calibration, oracle).scorer.name == calibration.scorer
    with pytest.raises(ValueError, match="oracle"):
        ConformalFilter.of(calibration)


@pytest.mark.parametrize("name", ["words", "stems", "text"])
def test_a_given_scorer_may_have_any_name(name):
    learned = calibrate(JUDGED, [replace(ORACLE, name=name)], alpha=0.1)
    assert learned.threshold() == calibrate(JUDGED, [ORACLE], alpha=0.1).threshold()


@pytest.mark.parametrize("judged", [JUDGED, [*JUDGED[:90], *map(without_relevant, JUDGED[90:])]])
def test_what_it_keeps_is_found_by_fits_that_did_not_see_the_query(judged):
    fit = split(judged).fit
    folds = [LearnedScorer.fit([q for i, q in enumerate(fit) if i % 5 != f]) for f in range(5)]
    scores = [folds[i % 5].score(q.query, q.snippets) for i, q in enumerate(fit)]
    fused = [FusionScorer(["bm25", "dense"]).score(q.query, q.snippets) for q in fit]
    fusion = [of.argsort(kind="stable").argsort() for of in fused]
    own, ranks, places = (
        kept([ScoredQuery(s, q.relevant) for s, q in zip(of, fit, strict=True)], 0.1)
        for of in (scores, [query.hits["dense"].ranks for query in fit], fusion)
    )
    choice = calibrate(judged, alpha=0.1).choice
    assert choice.costs["learned"] == own.mean()
    assert choice.best == "learned"
    assert choice.costs["top k of dense"] == ranks.mean() > own.mean()
    assert [*choice.costs][1:] == ["top k of bm25", "top k of dense", "top k of the fusion"]
    assert choice.costs["top k of the fusion"] == places.mean()


def test_with_fewer_than_ten_queries_in_the_fit_it_is_told_what_is_kept_of_those_that_calibrate():
    none, alone, few, enough = (calibrate(JUDGED[:n], alpha=0.1) for n in (9, 10, 39, 40))
    assert (none.choice.costs, none.choice.best, few.choice.n_fit) == ({}, None, 9)
    assert "At the threshold" not in calibrate(JUDGED[:8], alpha=0.1).statement
    scored = score_queries(ConformalFilter.of(alone).scorer, JUDGED[:10])
    assert alone.choice.costs["learned"] == kept(scored, 0.1).mean()
    assert all("that calibrate, with the threshold chosen in" in c.statement for c in (alone, few))
    assert "Cross-validated on these 10, with the threshold chosen in" in enough.statement


def ranked(retriever="retriever"):
    """Queries with a relevant snippet among the first five: nothing but its rank is of use."""
    rng, judged = np.random.default_rng(0), []
    for i in range(100):
        scores = np.sort(rng.normal(size=20) ** 3)[::-1].tolist()
        texts = [" ".join(map(str, rng.integers(0, 20, size=rng.integers(1, 60)))) for _ in scores]
        found = map(Snippet, texts)
        snippets = [replace(s, retrieval_score=x) for s, x in zip(found, scores, strict=True)]
        relevant = np.arange(20) == rng.integers(5)
        judged.append(JudgedQuery(f"{i}: 1 2 3", with_hits(snippets, retriever), relevant))
    return judged


@pytest.mark.parametrize("retriever", ["retriever", "without scores"])
def test_the_statement_warns_where_a_top_k_keeps_fewer_by_more_than_the_noise(retriever):
    calibration = calibrate(ranked(retriever), alpha=0.02)
    assert calibration.choice.best == f"top k of {retriever}"
    own = calibration.choice.costs["learned"]
    for text in (
        f"on these 25, with the threshold chosen in hindsight, it keeps {own:.1f} snippets per "
        f"query at 98 % recall of what was retrieved, and the top k of {retriever} 5.0.",
        f"The top k of {retriever} keeps fewer there, and in 9 of 10 resamples",
    ):
        assert text in calibration.statement
        assert text in calibration.at(0.2).statement  # they were found at 0.02
    unsure = "These queries are too few to say which is better"
    assert unsure not in calibration.statement
    assert unsure in calibrate(ranked()[:60], alpha=0.1).statement
    assert not re.search(f"{unsure}|keeps fewer", calibrate(JUDGED, alpha=0.1).statement)


def halved(query):
    """Return a query whose snippets are cut into two sentences each, the first ones first."""
    halves = [replace(s, id=f"{i}:{start}") for start in "01" for i, s in enumerate(query.snippets)]
    return JudgedQuery(query.query, halves, np.tile(query.relevant, 2), split="halves")


def test_of_sentences_a_top_k_of_documents_is_compared_which_passes_all_of_each():
    calibration = calibrate([*map(halved, ranked())], alpha=0.02)
    assert "and of whole documents, the top k of retriever 10.0 sentences." in calibration.statement
    assert "The top k of retriever keeps fewer there, and in 9 of 10" in calibration.statement
    choices = (calibrate([*map(cut, JUDGED)], alpha=0.1).choice for cut in (replace, halved))
    whole, halves = ([cost for name, cost in c.costs.items() if name[:3] == "top"] for c in choices)
    assert [2 * cost for cost in whole] == halves


def test_the_statement_says_how_many_snippets_pass_the_threshold():
    judged = [*JUDGED, *(JudgedQuery(f"{i} is nowhere", [], []) for i in range(20))]
    found = [q for q in split(judged).calibration if q.snippets]
    calibration = calibrate(judged, alpha=0.1)
    n = np.mean([len(ConformalFilter.of(calibration)(q.query, q.snippets).kept) for q in found])
    assert f"At the threshold, {n:.1f} snippets pass per query" in calibration.statement
    assert "At the threshold" not in calibration.at(0.2).statement


@pytest.mark.slow
def test_a_top_k_that_keeps_fewer_on_ten_queries_by_chance_is_rarely_warned_of():
    calibrations = [calibrate(queries(40, seed, strength=0.7), alpha=0.1) for seed in range(20)]
    assert sum("more than chance" in one.statement for one in calibrations) <= 2


def test_a_top_k_that_cannot_keep_enough_as_its_retriever_returns_too_few_is_left_out():
    def cut(query, k):
        snippets = [
            replace(s, hits=[hit for hit in s.hits if hit.retriever == "bm25" or hit.rank < k])
            for s in query.snippets
        ]
        return replace(query, snippets=snippets)

    nothing = [cut(query, 0 if i % 2 else 99) for i, query in enumerate(JUDGED)]
    for judged in ([cut(query, 1) for query in JUDGED], nothing):
        calibration = calibrate(judged, alpha=0.1)
        assert [*calibration.choice.costs] == ["learned", "top k of bm25", "top k of the fusion"]
        assert "No k of dense reaches this recall." in calibration.statement
    seldom = [cut(query, 0 if query is split(JUDGED).fit[0] else 99) for query in JUDGED]
    assert "top k of dense" in calibrate(seldom, alpha=0.1).choice.costs


def test_a_top_k_that_keeps_fewer_of_one_query_is_not_better_by_more_than_the_noise():
    top = [ScoredQuery([0.0, 1.0], [True, False])] * 20
    for n, better in ((1, False), (8, True)):  # of so many, the score keeps one more
        assert _better(top, [ScoredQuery([0.0, 0.0], [True, False])] * n + top[n:], 0.1) == better


@pytest.mark.parametrize(("field", "context"), [("document", "none"), ("position", "document")])
def test_a_document_or_position_that_one_snippet_lacks_is_not_read_and_said(field, context):
    def placed(query):
        snippets = [replace(s, document="d", position=i) for i, s in enumerate(query.snippets)]
        if query is JUDGED[0]:
            snippets[0] = replace(snippets[0], **{field: None, "position": None})
        return replace(query, snippets=snippets)

    n = sum(len(query.snippets) for query in JUDGED)
    with pytest.warns(UserWarning, match=f"^1 of {n} snippets have no {field} .*not read") as told:
        calibration = calibrate([*map(placed, JUDGED)], alpha=0.1)
    assert len(told) == 1
    assert calibration.scorer_provenance["score"]["context"] == context


def test_the_statement_says_how_much_one_retriever_counts_beside_another():
    calibration = calibrate(JUDGED, alpha=np.float32(0.1))
    assert re.search(r": (dense|bm25) counts (\d\.\d times )?as much as ", calibration.statement)
    made = json.loads(json.dumps(calibration.scorer_provenance))
    for other, words in ((0.0, "little"), (-1.0, "the other way")):
        made["choice"]["contributions"] = {"bm25": other, "dense": 1.0}
        told = replace(calibration, scorer_provenance=made).statement
        assert f": dense counts most, bm25 counts {words}." in told
    made = [*(calibrate(JUDGED[:n], alpha=0.1) for n in (39, 40)), calibrate(ranked(), alpha=0.02)]
    assert ["counts" in c.statement for c in made] == [False, True, False]  # nine, ten, one source


def test_of_two_retrievers_that_agree_one_counts_as_much_as_the_other():
    def twice(s):
        return replace(s, hits=[*s.hits, s.hits[0]._replace(retriever="twin")])

    judged = [replace(query, snippets=[*map(twice, query.snippets)]) for query in ranked()]
    assert ": retriever counts as much as twin." in calibrate(judged, alpha=0.02).statement


def test_by_rank_alone_the_filter_is_a_calibrated_top_k():
    calibration = calibrate(ranked(), RankScorer(), alpha=0.02)
    assert "calibrated top k of 'retriever', k = 5." in calibration.statement
    assert len(ConformalFilter.of(calibration)("new", with_hits(list("abcdefghij"))).kept) == 5


def test_a_threshold_that_keeps_everything_is_warned_of_and_stated():
    infinite = FunctionScorer(lambda query, texts: [math.inf] * len(texts), "inf")
    with pytest.warns(UserWarning, match="threshold is infinite"):
        none = calibrate(JUDGED, infinite, alpha=0.1)
    fitted = calibrate(JUDGED, alpha=0.1)
    none = replace(none, scorer_provenance=fitted.scorer_provenance)
    assert none.statement.startswith("Drops nothing: no threshold is finite, as the next line")
    assert [one.statement.count("every snippet is kept") for one in (none, fitted)] == [2, 0]


def test_a_scorer_that_is_upside_down_beside_others_is_warned_of():
    signs = {query.query: 1 if query is JUDGED[14] else -1 for query in JUDGED}
    turned = FunctionScorer(lambda q, t: [signs[q] * ORACLE.scores[s] for s in t], "turned")
    with pytest.warns(UserWarning, match="by 'turned' alone, .*AUC 0.[01]"):
        calibrate(JUDGED[:15], [ORACLE, turned], alpha=0.1)


def test_the_fit_shows_a_bar_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    calibrate(JUDGED, alpha=0.1, progress=True)
    assert "Fitting the score" in capsys.readouterr().err


# --- errors ---------------------------------------------------------------------------------------


def test_relevant_snippets_without_hits_beside_others_are_told_from_a_scorer_that_fails():
    first, *others = JUDGED
    pairs = zip(first.snippets, first.relevant, strict=True)
    bare = [replace(snippet, hits=()) if relevant else snippet for snippet, relevant in pairs]
    mixed = [replace(first, snippets=bare), *others]
    with pytest.raises(ValueError, match="these have none. .* do not put a HybridRetriever into"):
        calibrate(mixed, alpha=0.1)
    assert calibrate(mixed, alpha=0.1, on_unscorable="keep").threshold() < math.inf
    fails = FunctionScorer(lambda q, t: [math.nan if q == first.query else 0.0] * len(t), "fails")
    with pytest.raises(ValueError, match="has no score.* Fix the scorer"):
        calibrate(JUDGED, [fails], alpha=0.1)


def test_the_guarantee_on_snippets_takes_the_only_retrievers_own_score():
    judged = ranked()
    calibration = calibrate(judged, alpha=0.1, guarantee="snippet")
    assert calibration.scorer == "retrieval(retriever, higher)"
    assert calibration.n_queries == len(judged)
    assert "does not depend on the query's other snippets" in calibration.statement
    ranks = [replace(q, snippets=with_hits([s.text for s in q.snippets])) for q in judged]
    for queries, given in ((JUDGED, None), (judged, [ORACLE]), (ranks, None)):
        with pytest.raises(ValueError, match=r"guarantee is 'snippet'.*\['.*give one scorer"):
            calibrate(queries, given, alpha=0.1, guarantee="snippet")


def test_nothing_to_score_by_is_an_error_that_says_what_to_do():
    plain = [JudgedQuery(f"query {i}", ["a", "b"], [True, False]) for i in range(80)]
    with pytest.raises(ValueError, match=r"judge_retriever.*scorer="):
        calibrate(plain, alpha=0.1)
    for scorers in (None, [], ORACLE):
        with pytest.raises(ValueError, match="judged is empty"):
            calibrate([], scorers, alpha=0.1)
    with pytest.raises(ValueError, match="query 79"):
        calibrate([*JUDGED[:60], *plain[79:]], alpha=0.1)


def test_given_scorers_have_different_names_and_were_not_fitted_on_the_queries():
    for given, match in (
        ([ORACLE] * 2, "each once"),
        ([LearnedScorer.fit(JUDGED)], "fitted"),
        ([3], "scorer"),
        ("learned", "^scorer is 'learned'; .* leave it out"),
        (LearnedScorer, "^scorer is <class .* an attribute name .* leave it out"),
        ([replace(ORACLE, name="dense")], "'bm25', 'dense'.*; give each once, with its own name"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            calibrate(JUDGED, given, alpha=0.1)
