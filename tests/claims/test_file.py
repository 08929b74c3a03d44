"""Files of annotated answers: what is written is read again, and bad lines are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conformal_retrievers.claims import AnnotatedAnswer, read_answers, write_answers


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz"])
def test_answers_are_read_as_they_were_written(tmp_path, name):
    answers = [
        AnnotatedAnswer([0.1, math.nan], [True, None], id="q", group="x"),
        AnnotatedAnswer([], []),
    ]
    write_answers(answers, tmp_path / name)
    for one, again in zip(answers, read_answers(tmp_path / name), strict=True):
        np.testing.assert_array_equal(again.relevance, one.relevance)
        assert (again.factual, again.id, again.group) == (one.factual, one.id, one.group)
    with pytest.raises(ValueError, match="relevance"):
        write_answers([AnnotatedAnswer([math.inf], [True], id="inf")], tmp_path / name)
    assert len(read_answers(tmp_path / name)) == 2


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"id": "q"}', "claims"),
        ('{"claims": [{"relevance": "high", "factual": true}]}', r"claims\.0\.relevance"),
        ('{"claims": [{"relevance": 0.5, "factual": "S"}]}', r"claims\.0\.factual"),
        ('{"claims": [{"relevance": NaN, "factual": true}]}', ""),
        ('{"claims": [], "topic": "x"}', "topic"),
        ('{"claims": [{"relevance": 0.5, "factual": true, "factual": false}]}', "factual"),
        (f'{{"claims": [{{"relevance": {10**400}, "factual": true}}]}}', "relevance"),
        ('{"claims": [], "group": "\\u001b[2J"}', "group"),
        ('{"claims": [], "id": "\\ud800"}', "id"),
        ("{", ""),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, field):
    (tmp_path / "bad.jsonl").write_text('{"claims": []}\n' + line)
    with pytest.raises(ValueError, match=rf"bad.jsonl, line 2.*{field}"):
        read_answers(tmp_path / "bad.jsonl")
