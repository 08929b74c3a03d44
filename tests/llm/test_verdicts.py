"""Questions with the answer yes or no."""

from __future__ import annotations

import json

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Usage
from conformal_retrievers.llm.verdicts import VERDICT, aask_verdicts, ask_verdicts


async def test_equal_requests_are_asked_once_and_all_answered():
    asked = []

    def complete(request):
        asked.append(request.user)
        verdict = {"1": "yes", "2": "no"}.get(request.user, "perhaps")
        return Reply(json.dumps({"reasoning": "", "verdict": verdict}), prompt_tokens=1)

    llm = LLM(complete, "m")
    requests = [Request("s", user, VERDICT) for user in "12131"]
    verdicts = ask_verdicts(llm, requests)
    assert verdicts == await aask_verdicts(llm, requests)
    assert verdicts.values[:3] == (True, False, True)
    assert verdicts.values[4] is True
    assert list(verdicts.reasons) == [3]
    assert verdicts.reasons[3].startswith("unreadable")
    assert verdicts.usage == Usage(3, 0, 0, 3, 0)
    assert sorted(asked) == sorted("123" * 2)


def test_a_reply_with_an_unknown_end_has_no_verdict_and_is_not_cached(tmp_path):
    cache, asked = Cache(tmp_path / "c.db"), []

    def complete(request):
        asked.append(request)
        return Reply('{"verdict": "yes"}', "unknown")

    for _ in range(2):
        verdicts = ask_verdicts(LLM(complete, "m"), [Request("s", "u")], cache=cache)
        assert verdicts.values == ("unreadable",)
    assert len(asked) == 2
