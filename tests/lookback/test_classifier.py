"""Lookback ratios by hand, the classifier against scikit-learn, and its files."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from conformal_retrievers.data.files import envelope_text
from conformal_retrievers.lookback import FactualityClassifier, JudgedRatios, LookbackRatios
from conformal_retrievers.lookback.ratios import SegmentAttention, lookback_ratios, ratio_features

# --- ratios ---------------------------------------------------------------------------------------


def test_a_head_that_attends_to_the_preamble_alone_has_ratio_0_over_snippets():
    means = np.zeros((3, 1, 1, 4), dtype=np.float32)
    means[..., 0] = 0.5
    ratios = lookback_ratios(SegmentAttention(means, np.array([2, 5, 3]), "m", "digest"))
    assert ratios.snippets.tolist() == [[[0.0]]]
    assert ratios.context.tolist() == [[1.0]]


def test_impossible_attention_is_refused():
    shapes = (((2, 1, 1, 4), 1, [1, 2]), ((2, 1, 4), 1, [1, 2, 3]), ((2, 1, 1, 3), 1, [1, 2]))
    values = (((2, 1, 1, 4), value, [1, 2, 3]) for value in (np.nan, -0.1))
    for shape, value, lengths in (*shapes, *values):
        with pytest.raises(ValueError, match="means"):
            SegmentAttention(np.full(shape, value, float), np.array(lengths), "m", "digest")


def ratios_of(snippets, context=0.5, model="m"):
    snippets = np.array(snippets, dtype=float)
    context = np.zeros(snippets.shape[:2]) + context
    return LookbackRatios(snippets, context, model, snippets.tobytes().hex())


def test_features_are_scaled_within_the_answer_and_filled_up_with_zeros():
    ratios = ratios_of([[[1.0, 3.0], [2.0, 5.0]]], [[0.2, 0.6]])  # a layer, two heads, two snippets
    assert ratio_features(ratios, "snippets", 3).tolist() == [0, 0.5, 0, 0.25, 1, 0]
    assert ratio_features(ratios, "snippet-average", 3).tolist() == [0, 1]
    assert ratio_features(ratios, "full-context", 3).tolist() == [0, 1]
    averages = ratios_of([[[1.0, 3.0], [2.0, 5.0], [0.0, 0.0]]])
    np.testing.assert_allclose(ratio_features(averages, "snippet-average", 2), [2 / 3.5, 1, 0])
    assert ratio_features(averages, "full-context", 2).tolist() == [0, 0, 0]  # all the same


# --- the classifier -------------------------------------------------------------------------------

LAYERS, HEADS, SNIPPETS = 2, 3, 4


def answers_of(rng, n, *, signal=0.6, group=None, model="m"):
    """Consistent answers look more at their first snippet with the first head."""
    answers = []
    for i in range(n):
        consistent = bool(rng.random() < 0.7)
        snippets = rng.random((LAYERS, HEADS, int(rng.integers(1, SNIPPETS + 1))))
        snippets[0, 0, 0] += signal * consistent
        ratios = ratios_of(snippets, rng.random((LAYERS, HEADS)), model)
        answers.append(JudgedRatios(ratios, consistent, id=f"{group}{i}", group=group))
    return answers


@pytest.fixture(scope="module")
def fitted():
    answers = answers_of(np.random.default_rng(1), 300)
    return answers, FactualityClassifier.fit(answers, n_snippets=SNIPPETS)


@pytest.mark.parametrize(
    ("variant", "size"), [("snippets", 24), ("snippet-average", 6), ("full-context", 6)]
)
def test_the_confidence_is_that_of_scikit_learn(rng, variant, size):
    answers = answers_of(rng, 200)
    classifier = FactualityClassifier.fit(answers, n_snippets=SNIPPETS, variant=variant)
    table = np.stack([ratio_features(a.ratios, variant, SNIPPETS) for a in answers])
    assert table.shape == (200, size)
    consistent = [a.consistent for a in answers]
    theirs = LogisticRegression(max_iter=1000, class_weight="balanced").fit(table, consistent)
    new = [a.ratios for a in answers_of(rng, 50)]
    expected = theirs.predict_proba([ratio_features(r, variant, SNIPPETS) for r in new])[:, 1]
    np.testing.assert_allclose(classifier.predict_proba(new), expected, atol=1e-9)


def test_evaluation_measures_the_auc_with_its_interval(fitted, rng):
    _, classifier = fitted
    test = answers_of(rng, 400)
    found = classifier.evaluate(test)
    confidence = classifier.predict_proba([a.ratios for a in test])
    consistent = [a.consistent for a in test]
    assert found.estimate == pytest.approx(roc_auc_score(consistent, confidence))
    assert found.estimate > 0.8
    assert found == classifier.evaluate(test)  # with the same resamples
    # Hanley and McNeil 1982: the standard error of an AUC, of exponential laws.
    a, m, n = found.estimate, sum(consistent), 400 - sum(consistent)
    q1, q2 = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
    error = math.sqrt((a * (1 - a) + (m - 1) * q1 + (n - 1) * q2) / (m * n))
    for level, deviations in ((0.95, 1.96), (0.5, 0.674)):
        interval = classifier.evaluate(test, level=level)
        assert interval.high - interval.low == pytest.approx(2 * deviations * error, rel=0.2)


def test_an_answer_without_a_token_has_no_confidence_and_is_refused_in_a_fit(fitted, rng):
    answers, classifier = fitted
    nothing = ratios_of(np.full((LAYERS, HEADS, 2), np.nan), np.nan)
    assert np.isnan(classifier.predict_proba([nothing]))
    given = [answers[0], JudgedRatios(nothing, False), *answers[1:]]
    with pytest.raises(ValueError, match=r"answers\[1\] has no token"):
        FactualityClassifier.fit(given, n_snippets=SNIPPETS)
    test = [JudgedRatios(nothing, False), *(a for a in answers_of(rng, 50) if a.consistent)]
    assert classifier.evaluate(test).estimate == 1  # no confidence is the least


def test_what_cannot_be_fitted_or_evaluated_is_refused(fitted, rng):
    answers, classifier = fitted
    fit = partial(FactualityClassifier.fit, n_snippets=SNIPPETS)
    new, [other] = answers_of(rng, 20), answers_of(rng, 1, model="other")
    alike = [answer for answer in new if answer.consistent]
    one_kind = f"{len(alike)} consistent and 0 inconsistent"
    for words, use in (
        (r"answers\[20\] .* fit ", lambda: classifier.evaluate([*new, answers[7]])),
        (r"answers\[20\] .* answers\[3\]", lambda: classifier.evaluate([*new, new[3]])),
        ("level", lambda: classifier.evaluate(new, level=95)),
        ("variant", lambda: fit(answers, variant="all")),
        (f"has {SNIPPETS} snippets", lambda: fit(answers, n_snippets=SNIPPETS - 1)),
        ("'other'", lambda: fit([*answers, other])),
        ("'other'", lambda: classifier.predict_proba([other.ratios])),
        (r"\(1, 1\) layers and heads", lambda: classifier.predict_proba([ratios_of([[[1.0]]])])),
        (one_kind, lambda: fit(alike)),
        (one_kind, lambda: classifier.evaluate(alike)),
    ):
        with pytest.raises(ValueError, match=words):
            use()


# --- files ----------------------------------------------------------------------------------------


def test_a_classifier_comes_back_bit_for_bit(fitted, rng, tmp_path):
    _, classifier = fitted
    classifier.save(tmp_path / "factuality.json")
    again = FactualityClassifier.load(tmp_path / "factuality.json")
    new = [a.ratios for a in answers_of(rng, 20)]
    assert (again.predict_proba(new) == classifier.predict_proba(new)).all()
    for field in dataclasses.fields(classifier):
        one, other = (getattr(c, field.name) for c in (classifier, again))
        np.testing.assert_array_equal(one, other)
    assert again.name == classifier.name


def test_the_name_does_not_depend_on_the_machine():
    """The digest is that of the name so far and the numbers, as little-endian float64."""
    weights = np.array([0.5, -1.25, 3.0])
    classifier = FactualityClassifier("m", "full-context", 1, 3, 1, weights, -0.5, frozenset())
    assert classifier.name == "factuality(m; full-context, 1×3×1, fit=abb77f153cf0)"
    swapped = dataclasses.replace(classifier, coefficients=weights.astype(">f8"))
    assert swapped.name == classifier.name
    for other in (
        {"intercept": 0.5},
        {"coefficients": -weights},
        {"variant": "snippet-average"},
        {"n_snippets": 2},
        {"model": "n"},
    ):
        changed = dataclasses.replace(classifier, **other).name
        assert changed.split("fit=")[1] != classifier.name.split("fit=")[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"heads": 4},
        {"variant": "full-context"},
        {"variant": "all"},
        {"layers": "2"},
        {"n_snippets": -4},
        {"fitted_on": [1]},
        {"coefficients": [0.5] * 23},
        {"coefficients": [0.5] * 23 + [10**400]},
        {"model": "\x1b[2Jm"},
    ],
    ids=lambda fields: str(fields)[-30:],
)
def test_forged_fields_are_refused(fitted, tmp_path, fields):
    """With a checksum that fits them; tests/data/test_files.py has files of other contents."""
    path = tmp_path / "factuality.json"
    fitted[1].save(path)
    found = json.loads(path.read_text()) | fields
    found.pop("sha256")
    path.write_text(envelope_text(found))
    [field] = fields
    shape = field in ("heads", "variant", "coefficients")
    with pytest.raises(ValueError, match=f"factuality.json.*{field}{'|coefficients' * shape}"):
        FactualityClassifier.load(path)
