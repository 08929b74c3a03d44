"""Feedback by its formula, word by word, and what it is for."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.scoring.learned.feedback import feedback


def words_of(text):
    words = re.findall(r"\w+", re.sub("([赤い])", r" \1 ", text.lower().replace("_", " ")))
    return [word.encode()[:8] for word in words]


def by_hand(query, texts, scores):
    words, asked = [Counter(words_of(text)) for text in texts], {*words_of(query)}
    n, m = len(texts), Counter(w for of_text in words for w in of_text)
    vectors = []
    for of_text in words:
        v = {
            w: (1 + math.log(k)) * math.log(1 + (n - m[w] + 0.5) / (m[w] + 0.5))
            for w, k in of_text.items()
            if w not in asked
        }
        length = math.sqrt(sum(x * x for x in v.values())) or 1
        vectors.append({w: x / length for w, x in v.items()})
    weights = [max(math.exp(-3 * (x - min(scores))), 2**-20) for x in scores]
    found = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        alike = sum(
            weights[j] * sum(x * vectors[j].get(w, 0) for w, x in vectors[i].items())
            for j in others
        )
        found.append(alike / (sum(weights[j] for j in others) or 1))
    return found


words = st.sampled_from(
    ["red", "Red", "designed", "designer", "Überraschung", "überraschend", "赤い", "3_5", "\0", ""]
)
text = st.lists(words, max_size=6).map(" ".join)
pair = st.tuples(text, st.floats(-2, 2))


@given(text, st.lists(pair, max_size=7), st.sampled_from([-300, 0, 300]))
def test_feedback_is_its_formula_in_any_script(query, pairs, offset):
    texts, scores = [t for t, _ in pairs], np.array([x + offset for _, x in pairs])
    expected = by_hand(query, texts, scores.tolist())
    np.testing.assert_allclose(feedback(query, texts, scores), expected, atol=1e-5)


def test_what_the_best_snippets_say_beyond_the_query_is_found_in_others():
    texts = ["The tower was designed by Sauvestre.", "Sauvestre was born in Bonnétable.", "Wine."]
    found = feedback("who designed the tower", texts, np.array([-1.0, 0.5, 0.5]))
    assert found[1] > 0.1
    assert found[2] == 0  # exactly: it shares no word with the others
    alike = feedback("q", ["a red wine"] * 60, np.array([-9.0] + [0.0] * 59))
    assert alike.tolist() == [1] * 60  # and nothing is made of what is rounded off
    alone = feedback("who was Sauvestre born in", texts, np.array([-1.0, 0.5, 0.5]))
    assert alone.tolist() == pytest.approx([0, 0, 0])  # what the query says does not count
