"""Asking with a bound and a cache."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformal_retrievers import Cache
from conformal_retrievers.llm import ask as llm_module
from conformal_retrievers.llm.ask import LLM, aask, ask
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage

REQUESTS = [Request("s", str(i)) for i in range(20)]


def echo(delay=0.0, **acomplete):
    def complete(request):
        time.sleep(delay)
        return Reply(request.user, prompt_tokens=2, completion_tokens=1)

    return LLM(complete, "echo", **acomplete)


class Busy:
    """An LLM that counts how many it answers at once, now and at most."""

    def __init__(self, fail=()):
        self.now = self.most = self.asked = 0
        self.fail = fail
        self.lock = threading.Lock()

    def enter(self, request):
        with self.lock:
            self.now, self.asked = self.now + 1, self.asked + 1
            self.most = max(self.most, self.now)

    def leave(self, request):
        with self.lock:
            self.now -= 1
        if request.user in self.fail:
            raise self.fail[request.user]
        return Reply(request.user)

    def complete(self, request):
        self.enter(request)
        time.sleep(0.005)
        return self.leave(request)

    async def acomplete(self, request):
        self.enter(request)
        try:
            await asyncio.sleep(0.005)
        finally:
            reply = self.leave(request)
        return reply


async def both(llm, requests, **options):
    """Return what `ask` and `aask` return, which must be the same."""
    answers = ask(llm, requests, **options)
    other = await aask(llm, requests, **options)
    assert list(map(str, answers)) == list(map(str, other))
    return answers


@pytest.mark.parametrize("native", [False, True])
async def test_answers_come_back_in_the_order_of_the_requests(native):
    async def late(request):
        await asyncio.sleep(0.001 * (20 - int(request.user)))
        return Reply(request.user, prompt_tokens=2, completion_tokens=1)

    llm = echo(**({"acomplete": late} if native else {}))
    answers = await both(llm, REQUESTS, concurrency=7)
    assert [a.text for a in answers] == [str(i) for i in range(20)]
    assert Usage.of(answers) == Usage(20, 0, 0, 40, 20)
    assert await both(llm, []) == []


@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_no_more_than_concurrency_requests_run_at_a_time(concurrency):
    for native in (False, True):
        sync, other = Busy(), Busy()
        ask(LLM(sync.complete, "busy"), REQUESTS, concurrency=concurrency)
        acomplete = other.acomplete if native else None
        llm = LLM(other.complete, "busy", acomplete)
        await aask(llm, REQUESTS, concurrency=concurrency)
        for busy in (sync, other):
            assert (concurrency > 1) < busy.most <= min(concurrency, 20)


@pytest.mark.parametrize("native", [False, True])
async def test_calls_of_one_model_share_one_bound(native):
    busy = Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete if native else None)
    calls = [aask(llm, REQUESTS[:5], concurrency=3) for _ in range(20)]
    await asyncio.gather(*calls)
    assert busy.asked == 100
    assert 1 < busy.most <= 3
    with ThreadPoolExecutor(20) as threads:
        for _ in range(20):
            threads.submit(ask, llm, REQUESTS[:5], concurrency=3)
    assert busy.asked == 200
    assert 1 < busy.most <= 3


async def test_what_waits_for_its_turn_when_a_call_fails_is_not_asked():
    asked, go = [], threading.Event()

    def complete(request):
        asked.append(request.user)
        if request.user == "0":
            raise PermissionError("wrong key")
        go.wait(10)
        return Reply("")

    llm = LLM(complete, "m")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, llm, [Request("s", "first")], concurrency=1)
        while not asked:
            time.sleep(0.001)
        second = threads.submit(ask, llm, REQUESTS, concurrency=1)
        go.set()
        first.result()
        with pytest.raises(PermissionError):
            second.result()
    assert asked == ["first", "0"]


async def test_a_cancelled_call_gives_its_places_back():
    busy = Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete)
    calls = [asyncio.create_task(aask(llm, REQUESTS, concurrency=2)) for _ in range(5)]
    await asyncio.sleep(0.01)
    for call in calls[:4]:
        call.cancel()
    assert len(await calls[4]) == 20
    assert busy.most <= 2
    assert [call.cancelled() for call in calls] == [True] * 4 + [False]


class Held:
    """An LLM without `acomplete` that answers "held" once it is let go, and the rest at once."""

    def __init__(self):
        self.asked, self.threads = [], []
        self.begun, self.go = threading.Event(), threading.Event()
        self.llm = LLM(self.complete, "held")

    def complete(self, request):
        self.asked.append(request.user)
        if request.user == "held":
            self.threads.append(threading.current_thread())
            self.begun.set()
            assert self.go.wait(30)
        return Reply(request.user)

    async def give_up(self):
        """Ask for what is held, and cancel that while its thread is at work."""
        call = asyncio.create_task(aask(self.llm, [Request("s", "held")], concurrency=1))
        assert await asyncio.to_thread(self.begun.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not self.go.is_set()  # the thread is not waited for


async def test_a_thread_keeps_its_place_until_it_ends_though_its_call_was_cancelled():
    held = Held()
    await held.give_up()
    other = asyncio.create_task(aask(held.llm, REQUESTS[:3], concurrency=1))
    await asyncio.wait([other], timeout=0.2)  # if there were a place, all would be asked by now
    assert held.asked == ["held"]
    held.go.set()
    assert [a.text for a in await asyncio.wait_for(other, 30)] == ["0", "1", "2"]


def test_a_thread_that_outlives_its_event_loop_ends_in_silence(caplog):
    held = Held()
    asyncio.run(held.give_up())
    held.go.set()
    held.threads[0].join(30)
    assert caplog.records == []
    assert len(asyncio.run(aask(held.llm, REQUESTS, concurrency=1))) == 20
    gc.collect()
    assert all(id(held.llm) not in key for key in llm_module._SLOTS)


def test_event_loops_do_not_wait_for_one_another():
    """A semaphore that belongs to another loop raises RuntimeError where one has to wait for it."""
    busy, together = Busy(), threading.Barrier(2, timeout=30)

    async def acomplete(request):
        if request.user == "0":
            await asyncio.to_thread(together.wait)  # both loops are asking now
        return await busy.acomplete(request)

    llm = LLM(busy.complete, "busy", acomplete)

    def call(_):
        asked = aask(llm, REQUESTS, concurrency=1)
        return asyncio.run(asyncio.wait_for(asked, 30))

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(call, range(2)))
    assert [len(a) for a in answers] == [20, 20]


def test_an_event_loop_that_ended_leaves_no_places_taken():
    busy = Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete)
    for _ in range(3):
        assert len(asyncio.run(aask(llm, REQUESTS, concurrency=2))) == 20
    assert len(ask(llm, REQUESTS, concurrency=2)) == 20
    gc.collect()
    assert all(id(llm) not in key for key in (*llm_module._SLOTS, *llm_module._SLOTS))


async def test_what_nobody_answered_comes_back_in_its_place():
    busy = Busy(fail={"3": Unanswered("full")})
    answers = await both(LLM(busy.complete, "busy", busy.acomplete), REQUESTS)
    assert [i for i, a in enumerate(answers) if isinstance(a, Unanswered)] == [3]
    assert Usage.of(answers) == Usage(20, 0, 1)


async def test_another_error_stops_the_rest_and_leaves_no_task_behind():
    for native in (False, True):
        busy = Busy(fail={"1": PermissionError("wrong key")})
        llm = LLM(busy.complete, "b", busy.acomplete if native else None)
        with pytest.raises(PermissionError, match="wrong key"):
            await aask(llm, REQUESTS, concurrency=2)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        before = busy.asked
        with pytest.raises(PermissionError, match="wrong key"):
            ask(llm, REQUESTS, concurrency=2)
        assert busy.asked - before < 10
        assert before < 10
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_cancels_what_was_asked_and_leaves_no_task_behind():
    busy, cancelled = Busy(), []

    async def slow(request):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.user)
            await asyncio.sleep(0.01)  # it takes its time, and is waited for
            cancelled.append("done")
            raise

    task = asyncio.create_task(aask(LLM(busy.complete, "b", slow), REQUESTS, concurrency=3))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cancelled) == ["0", "1", "2", "done", "done", "done"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_model_is_asked_in_the_context_of_the_caller():
    run = contextvars.ContextVar("run")
    run.set("ours")

    async def acomplete(request):
        return Reply(run.get())

    for llm in (LLM(lambda r: Reply(run.get()), "a"), LLM(lambda r: Reply(""), "b", acomplete)):
        answers = await aask(llm, REQUESTS[:3])
        assert {a.text for a in answers} == {"ours"}
    assert {a.text for a in ask(LLM(lambda r: Reply(run.get()), "a"), REQUESTS[:3])} == {"ours"}


@pytest.mark.parametrize("concurrency", [0, -1, 2.5, True, None])
async def test_concurrency_is_a_number_of_requests(concurrency):
    with pytest.raises(ValueError, match="concurrency is"):
        ask(echo(), REQUESTS, concurrency=concurrency)
    with pytest.raises(ValueError, match="concurrency is"):
        await aask(echo(), REQUESTS, concurrency=concurrency)


async def test_a_progress_bar_is_shown_if_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    await both(echo(), REQUESTS)
    assert "Asking" not in capsys.readouterr().err
    ask(echo(), REQUESTS, progress=True)
    assert "Asking" in capsys.readouterr().err
    await aask(echo(), REQUESTS, progress=True)
    assert "Asking" in capsys.readouterr().err


# --- asking with a cache --------------------------------------------------------------------------


async def test_the_cache_answers_what_was_answered_before(tmp_path):
    cache, busy = Cache(tmp_path / "c.db"), Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete)
    first = ask(llm, REQUESTS[:12], cache=cache)
    again = await aask(llm, REQUESTS, cache=cache)
    assert busy.asked == 20
    assert [a.text for a in again[:12]] == [a.text for a in first]
    assert [a.cached for a in again] == [True] * 12 + [False] * 8
    assert Usage.of(again).cached == 12
    assert Usage.of([Reply("", prompt_tokens=5, cached=True)]).prompt_tokens == 0


def test_a_cached_reply_is_the_reply(tmp_path):
    cache = Cache(tmp_path / "c.db")
    reply = Reply('"x"\n\ud800é', "stop", {"YES": -0.1, "NO": float("-inf")}, 3, 4)
    ask(LLM(lambda request: reply, "m"), REQUESTS[:1], cache=cache)
    (known,) = ask(LLM(lambda request: None, "m"), REQUESTS[:1], cache=cache)
    assert known == Reply(reply.text, "stop", reply.first_token, 3, 4, cached=True)


@pytest.mark.parametrize(
    "other",
    [
        Request("S", "0"),
        Request("s", "O"),
        Request("s", "0", {"type": "object"}),
        Request("s", "0", None, 5),
        Request("s", "0", None, 0, 9),
    ],
)
def test_another_request_or_model_has_another_reply(tmp_path, other):
    cache, busy = Cache(tmp_path / "c.db"), Busy()
    for name, request in (("a", REQUESTS[0]), ("a", other), ("b", REQUESTS[0])):
        ask(LLM(busy.complete, name), [request], cache=cache)
    assert busy.asked == 3


async def test_what_is_no_answer_is_not_cached(tmp_path):
    cache, asked = Cache(tmp_path / "c.db"), []
    replies = [Unanswered("full"), Reply("", "refusal"), Reply("{", "length"), Reply("ok")]

    def complete(request):
        asked.append(request.user)
        answer = replies[int(request.user)]
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    ask(LLM(complete, "m"), REQUESTS[:4], cache=cache)
    await aask(LLM(complete, "m"), REQUESTS[:4], cache=cache)
    assert sorted(asked) == ["0", "0", "1", "1", "2", "2", "3"]


async def test_what_is_no_answer_to_who_asks_is_neither_kept_nor_taken(tmp_path):
    """Nor taken where another, who could read it, has kept it."""
    cache, busy = Cache(tmp_path / "c.db"), Busy()
    llm = LLM(busy.complete, "m")

    def even(place, reply):
        return int(reply.text) % 2 == 0

    ask(llm, REQUESTS[:4], cache=cache, is_answer=even)
    await aask(llm, REQUESTS[4:8], cache=cache, is_answer=even)
    again = ask(llm, REQUESTS[:8], cache=cache)
    assert [a.cached for a in again] == [True, False] * 4
    for answers in (
        ask(llm, REQUESTS[:8], cache=cache, is_answer=even),
        await aask(llm, REQUESTS[:8], cache=cache, is_answer=even),
    ):
        assert [a.cached for a in answers] == [True, False] * 4


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    cache, busy = Cache(tmp_path / "c.db"), Busy(fail={"10": KeyError("stopped")})
    with pytest.raises(KeyError):
        ask(LLM(busy.complete, "m"), REQUESTS, cache=cache, concurrency=1)
    before, busy.fail = busy.asked, {}
    answers = ask(LLM(busy.complete, "m"), REQUESTS, cache=cache, concurrency=1)
    assert [a.cached for a in answers] == [True] * 10 + [False] * 10
    assert busy.asked == before + 10
