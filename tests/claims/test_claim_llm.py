"""What an LLM does with claims, against a real server, and replies that cannot be read."""

import pytest
from llm_server import fields_of
from replies import replying

from conformal_retrievers.claims.llm import adecompose, amerge, annotate, decompose, merge
from conformal_retrievers.llm import Reply, Unanswered

QUERY, BUSY = "Who wrote it?", Unanswered("busy")


# --- dividing -------------------------------------------------------------------------------------


async def test_an_answer_is_divided_into_its_claims(llm, llm_server):
    divided = decompose(llm, QUERY, "Ada wrote it.  She lived in London.")
    assert divided.claims == ("Ada wrote it.", "She lived in London.")
    assert divided.reason is None
    assert divided.usage.requests == 1
    assert await adecompose(llm, QUERY, "Ada wrote it.  She lived in London.") == divided
    schema = llm_server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["claims"]
    assert decompose(llm, QUERY, " \n").claims == ()
    assert len(llm_server.bodies) == 2  # a blank answer is not sent


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (BUSY, "unanswered"),
        (Reply('{"claims": ["a"]}', "length"), "cut off"),
        ({"claims": "a"}, "unreadable"),
        ({"claims": ["a", 7]}, "unreadable"),
        ({"claims": ["a", "\ud800"]}, "unreadable"),
    ],
)
def test_an_undivided_answer_has_no_claims_and_a_reason(reply, reason):
    divided = decompose(replying(reply), QUERY, "Ada wrote it.")
    assert (divided.claims, divided.reason) == ((), reason)
    assert decompose(replying({"claims": []}), QUERY, "I do not know.").reason is None
    assert decompose(replying({"claims": [" a ", ""]}), QUERY, "A.").claims == ("a",)


BAD = ("overloaded", '{"claims": "a", "verdict": "perhaps", "text": " "}')


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "answered",
    [
        lambda llm, cache: decompose(llm, QUERY, "Ada wrote it.", cache=cache).reason is None,
        lambda llm, cache: (
            annotate(llm, QUERY, ["a"], reference="a", cache=cache).reasons == (None,)
        ),
        lambda llm, cache: merge(llm, QUERY, ["a"], cache=cache).reason is None,
    ],
    ids=["decompose", "annotate", "merge"],
)
def test_unreadable_replies_are_not_cached(llm, llm_server, cache, bad, answered):
    good = llm_server.reply
    llm_server.reply = lambda body: bad
    assert not answered(llm, cache)
    llm_server.reply = good
    assert answered(llm, cache)
    assert len(llm_server.bodies) == 2
    assert answered(llm, cache)
    assert len(llm_server.bodies) == 2


# --- annotating -----------------------------------------------------------------------------------


def test_each_claim_is_annotated_by_reference_and_documents(llm, llm_server):
    claims = ["Ada wrote it.", "She was born in 1815.", "She was born in 1999."]
    documents = ["Ada Lovelace. She was born in 1815."]
    found = annotate(llm, QUERY, claims, reference="Ada wrote it.", documents=documents)
    assert found.verdicts == ("supported", "supported", "contradicted")
    assert found.factual == (True, True, False)
    assert found.reasons == (None, None, None)
    assert found.usage.requests == 3
    assert sorted(fields_of(body)["claim"] for body in llm_server.bodies) == sorted(claims)
    assert fields_of(llm_server.bodies[0])["documents"] == documents
    for query, blank in ((QUERY, " \n"), (QUERY, None), (None, "a")):
        with pytest.raises(ValueError, match="reference is" if query else "query is"):
            annotate(llm, query, claims, reference=blank)


@pytest.mark.parametrize(
    ("reply", "verdict", "factual", "reason"),
    [
        ({"verdict": "supported"}, "supported", True, None),
        ({"verdict": " Unsupported "}, "unsupported", False, None),
        ({"verdict": "not supported"}, None, None, "unreadable"),
        (Reply('{"verdict": "supported"}', "length"), None, None, "cut off"),
        (BUSY, None, None, "unanswered"),
    ],
)
def test_only_a_known_verdict_is_factual_or_not(reply, verdict, factual, reason):
    found = annotate(replying(reply), QUERY, ["a"], reference="r")
    assert (found.verdicts, found.factual, found.reasons) == ((verdict,), (factual,), (reason,))


# --- merging --------------------------------------------------------------------------------------


async def test_merged_claims_are_outside_the_guarantee(llm, llm_server):
    merged = merge(llm, QUERY, ["Ada wrote it.", "It is long."])
    assert merged.text == "In short: Ada wrote it. It is long."
    assert not merged.guaranteed
    assert await amerge(llm, QUERY, ["Ada wrote it.", "It is long."]) == merged
    assert merge(llm, QUERY, []).text == ""
    assert len(llm_server.bodies) == 2


@pytest.mark.parametrize(
    "reply", [BUSY, {"text": " "}, {"text": 7}, {"text": "\ud800"}, Reply("no", "refusal")]
)
def test_unmerged_claims_are_joined(reply):
    merged = merge(replying(reply), QUERY, ["Ada wrote it", "It is long!"])
    assert merged.text == "Ada wrote it. It is long!"
    assert merged.guaranteed
    assert merged.reason is not None
