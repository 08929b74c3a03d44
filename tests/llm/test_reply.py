"""Reading the JSON of a reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.data.files import without_repetition
from conformal_retrievers.llm.reply import Reply, parse_json


@pytest.mark.parametrize(
    "field",
    [
        {"text": None},
        {"finish": "end_turn"},
        {"first_token": [["YES", -0.1]]},
        {"first_token": {"YES": -(10**400)}},
        {"prompt_tokens": None},
        {"completion_tokens": 0.5},
    ],
    ids=str,
)
def test_a_reply_refuses_a_field_of_another_type(field):
    with pytest.raises(TypeError, match=next(iter(field))):
        Reply(**{"text": "", **field})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"rating": 0.5}', {"rating": 0.5}),
        ('```json\n{"rating": 0.5}\n```', {"rating": 0.5}),
        ('Sure! Here it is: {"rating": 0.5} I hope that helps.', {"rating": 0.5}),
        (
            '{"reason": "the {brace} \\"quoted\\"", "rating": 1}',
            {"reason": 'the {brace} "quoted"', "rating": 1},
        ),
        ('<think>say {"rating": 1}? no</think>{"rating": 0}', {"rating": 0}),
        ('{"a": {"rating": 1}}', {"a": {"rating": 1}}),
        ("{}", {}),
        ("", None),
        ("0.8", None),
        ('{"rating": 0.5} or {"rating": 0.7}', None),
        ('{"reason": "it says {"rating": 1.0}", "rating": 0.1}', None),  # quotes not escaped
        ('{"reason": "cut {"rating": 1.0}', None),
        ('{"rating": 0.5, "rating": 1}', None),
        ('{"rating": 0.', None),
        ('} {"rating": 0.5}', None),
        ("{" * 10_000, None),
        ('{"a":' * 100_000, None),
    ],
)
def test_a_reply_has_one_json_object_or_none_is_read(text, value):
    assert parse_json(text) == value


@given(
    st.text(st.characters(exclude_characters="{}")), st.text(st.characters(exclude_characters="{}"))
)
def test_words_around_an_object_do_not_matter(before, after):
    if "</think>" not in after:
        assert parse_json(f'{before}{{"rating": 0.25}}{after}') == {"rating": 0.25}


def test_a_long_object_whose_last_name_repeats_is_read_in_linear_time():
    """Were the time quadratic, it would take minutes."""
    with pytest.raises(ValueError, match="field '99999' occurs twice"):
        without_repetition([*((str(i), i) for i in range(100_000)), ("99999", 0)])


def test_a_reply_that_is_far_longer_than_an_answer_is_not_read():
    assert parse_json(f'{{"reason": "{"a" * 90_000}", "rating": 1}}') is not None
    assert parse_json(f'{{"reason": "{"a" * 100_000}", "rating": 1}}') is None
    assert parse_json(f'{"a" * 100_000}</think>{{"rating": 1}}') == {"rating": 1}
