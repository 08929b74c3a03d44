"""Asking with a bound and a cache."""

import asyncio
import contextvars
import gc
import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformal_retrievers.llm import Request
from conformal_retrievers.llm import ask as llm_module
from conformal_retrievers.llm.ask import LLM, aask, ask, ask_verdicts
from conformal_retrievers.llm.reply import VERDICT, Reply, Unanswered, Usage

REQUESTS = [Request("s", str(i)) for i in range(20)]


WrongKey, TooLong, Firewall = (
    type(name, (Exception,), {"status_code": status})
    for name, status in (("WrongKey", 401), ("TooLong", 400), ("Firewall", 403))
)


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
    assert list(map(str, answers)) == list(map(str, await aask(llm, requests, **options)))
    return answers


async def test_answers_come_back_in_the_order_of_the_requests():
    async def late(request):
        await asyncio.sleep(0.001 * (20 - int(request.user)))
        return Reply(request.user, prompt_tokens=2, completion_tokens=1)

    def complete(request):
        return asyncio.run(late(request))

    for acomplete in (None, late):
        llm = LLM(complete, "echo", acomplete)
        answers = await both(llm, REQUESTS, concurrency=7)
        assert [a.text for a in answers] == [str(i) for i in range(20)]
        assert Usage.of(answers) == Usage(20, 0, 0, 40, 20)
        assert await both(llm, []) == []


@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_no_more_than_concurrency_requests_run_at_a_time(concurrency):
    busy = Busy()
    for llm in (LLM(busy.complete, "busy"), LLM(busy.complete, "busy", busy.acomplete)):
        await both(llm, REQUESTS, concurrency=concurrency)
        assert (concurrency > 1) < busy.most <= min(concurrency, 20)


@pytest.mark.parametrize("native", [False, True])
async def test_calls_of_one_model_share_one_bound(native):
    busy = Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete if native else None)
    await asyncio.gather(*[aask(llm, REQUESTS[:5], concurrency=3) for _ in range(20)])
    assert busy.asked == 100
    assert 1 < busy.most <= 3
    with ThreadPoolExecutor(20) as threads:
        for _ in range(20):
            threads.submit(ask, llm, REQUESTS[:5], concurrency=3)
    assert busy.asked == 200
    assert 1 < busy.most <= 3


class Held:
    """An LLM without `acomplete` that answers "held" once it is let go, and the rest at once."""

    def __init__(self):
        self.asked = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.llm = LLM(self.complete, "held")

    def complete(self, request):
        self.asked.append(request.user)
        if request.user == "held":
            self.begun.set()
            assert self.go.wait(30)
        return Reply(request.user)

    async def give_up(self):
        """Ask for what is held, and cancel that while its thread is at work."""
        requests = [Request("s", "held"), *REQUESTS[:2]]  # of which only the first is asked
        call = asyncio.create_task(aask(self.llm, requests, concurrency=1))
        assert await asyncio.to_thread(self.begun.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not self.go.is_set()  # the thread is not waited for


async def test_a_thread_of_a_cancelled_call_counts_until_it_ends():
    held = Held()
    await held.give_up()
    other = asyncio.create_task(aask(held.llm, REQUESTS[:3], concurrency=1))
    await asyncio.wait([other], timeout=1)  # if there were a place, all would be asked by now
    assert held.asked == ["held"]
    held.go.set()
    assert [a.text for a in await asyncio.wait_for(other, 30)] == ["0", "1", "2"]


def test_a_thread_that_outlives_its_event_loop_ends_silently(caplog):
    held, others = Held(), {*threading.enumerate()}
    asyncio.run(held.give_up())
    held.go.set()
    for thread in {*threading.enumerate()} - others:
        thread.join(30)
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
        return asyncio.run(asyncio.wait_for(aask(llm, REQUESTS, concurrency=1), 30))

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(call, range(2)))
    assert [len(a) for a in answers] == [20, 20]


def test_an_event_loop_is_not_kept_and_the_next_ones_have_the_same_bound():
    busy = Busy(fail={"3": ConnectionResetError})
    llm = LLM(busy.complete, "busy", busy.acomplete)

    async def calls():
        await asyncio.gather(*(aask(llm, REQUESTS[:5], concurrency=3) for _ in range(20)))

    for _ in range(3):
        busy.most = 0
        loop = asyncio.new_event_loop()
        loop.run_until_complete(calls())
        assert 1 < busy.most <= 3
        loop.run_until_complete(aask(llm, REQUESTS[:5], concurrency=5))
        loop.close()
    loop = weakref.ref(loop)
    gc.collect()
    assert loop() is None


async def test_an_unanswered_request_is_returned_in_its_place_and_logged(caplog):
    busy = Busy(fail={"3": ConnectionRefusedError(), "5": Unanswered("full")})
    answers = await both(LLM(busy.complete, "busy", busy.acomplete), REQUESTS)
    assert [i for i, a in enumerate(answers) if isinstance(a, Unanswered)] == [3, 5]
    assert Usage.of(answers) == Usage(20, 0, 2)
    assert [r.args for r in caplog.records] == [("busy", 2, 20, "unanswered: full")] * 2


@pytest.mark.parametrize("error", [WrongKey, ConnectionRefusedError])
async def test_no_access_is_raised_if_no_request_has_it(error, cache, caplog):
    busy = Busy(fail={"0": error, "1": error})
    llm = LLM(busy.complete, "busy", busy.acomplete)
    answers = await both(llm, REQUESTS[:8])
    assert [isinstance(a, Unanswered) for a in answers] == [True] * 2 + [False] * 6
    ask(llm, REQUESTS[2:3], cache=cache)
    with pytest.raises(error):
        await aask(llm, REQUESTS[:3], cache=cache)
    with pytest.raises(error):
        ask(llm, REQUESTS[:3], cache=cache)
    busy.fail["1"] = TooLong
    await both(llm, REQUESTS[:3], cache=cache)
    assert [(r.levelname, *r.args[1:3]) for r in caplog.records[-2:]] == [("ERROR", 2, 2)] * 2


async def test_a_refusal_is_raised_only_if_nothing_was_answered_not_even_before(cache):
    busy = Busy(fail={"0": Firewall, "1": Firewall})
    llm = LLM(busy.complete, "busy", busy.acomplete)
    ask(llm, REQUESTS[2:3], cache=cache)
    answers = await aask(llm, REQUESTS[:3], cache=cache)
    assert [isinstance(a, Unanswered) for a in answers] == [True, True, False]
    with pytest.raises(Firewall):
        ask(llm, REQUESTS[:2], cache=cache)


@pytest.mark.parametrize("native", [False, True])
async def test_a_wrong_key_stops_the_rest_and_leaves_no_task_behind(native):
    busy = Busy(fail={str(i): WrongKey for i in range(20)})
    llm = LLM(busy.complete, "b", busy.acomplete if native else None)
    with pytest.raises(WrongKey):
        await aask(llm, REQUESTS, concurrency=2)
    assert 8 <= busy.asked < 12
    with pytest.raises(WrongKey):
        ask(llm, REQUESTS, concurrency=2)
    assert 16 <= busy.asked < 22
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("reason", [ConnectionRefusedError, TooLong, None])
def test_a_long_run_is_given_up_after_eight_answers_of_no_use(reason, cache):
    busy = Busy(fail={str(i): reason for i in range(1, 20) if reason})
    llm, options = LLM(busy.complete, "b"), {"concurrency": 1, "give_up": True}
    with pytest.raises(reason or ValueError):
        ask(llm, REQUESTS[1:], is_answer=lambda _, reply: False, **options)
    assert busy.asked == 8
    ask(llm, REQUESTS[:1], cache=cache)  # some answer is of use, so others may be
    busy.asked = 0
    if reason is ConnectionRefusedError:
        with pytest.raises(reason):
            ask(llm, REQUESTS, cache=cache, **options)
        assert busy.asked == 8
    else:
        ask(llm, REQUESTS, cache=cache, **options)
        assert busy.asked == 19


def test_a_server_that_goes_away_is_not_asked_on_and_what_it_answered_is_kept():
    busy = Busy(fail={str(i): ConnectionRefusedError for i in range(5, 20)})
    answers = ask(LLM(busy.complete, "b"), REQUESTS, concurrency=1, give_up=True)
    assert [isinstance(a, Unanswered) for a in answers] == [False] * 5 + [True] * 15
    assert busy.asked == 5 + 8
    assert "not asked" in str(answers[-1])


async def test_cancelling_cancels_the_requests_and_leaves_no_task_behind():
    busy, begun, cancelled = Busy(), [], []

    async def slow(request):
        begun.append(request.user)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.user)
            await asyncio.sleep(0.01)  # it takes its time, and is waited for
            cancelled.append("done")
            raise

    task = asyncio.create_task(aask(LLM(busy.complete, "b", slow), REQUESTS, concurrency=3))
    while len(begun) < 3:
        await asyncio.sleep(0.001)
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

    for other in (None, acomplete):
        answers = await both(LLM(lambda request: Reply(run.get()), "a", other), REQUESTS[:3])
        assert {a.text for a in answers} == {"ours"}


@pytest.mark.parametrize("concurrency", [0, 2.5, True, None])
def test_an_invalid_concurrency_is_refused(concurrency):
    with pytest.raises(ValueError, match="concurrency"):
        ask(LLM(Busy().complete, "busy"), REQUESTS, concurrency=concurrency)


def test_a_progress_bar_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    llm = LLM(Busy().complete, "busy")
    ask(llm, REQUESTS)
    assert "Asking" not in capsys.readouterr().err
    ask(llm, REQUESTS, progress=True)
    assert "Asking" in capsys.readouterr().err


# --- asking with a cache --------------------------------------------------------------------------


async def test_cached_requests_are_not_sent(cache):
    busy = Busy()
    llm = LLM(busy.complete, "busy", busy.acomplete)
    first = ask(llm, REQUESTS[:12], cache=cache)
    again = await aask(llm, REQUESTS, cache=cache)
    assert busy.asked == 20
    assert [a.text for a in again[:12]] == [a.text for a in first]
    assert [a.cached for a in again] == [True] * 12 + [False] * 8
    assert Usage.of(again).cached == 12
    ask(llm, [Request("s", "0", {"type": "object"}), Request("s", "0", None, 5)], cache=cache)
    assert busy.asked == 22
    assert Usage.of([Reply("", prompt_tokens=5, cached=True)]).prompt_tokens == 0


def test_a_cached_reply_is_the_reply(cache):
    reply = Reply('"x"\n\ud800é', "stop", {"YES": -0.1, "NO": float("-inf")}, 3, 4)
    ask(LLM(lambda request: reply, "m"), REQUESTS[:1], cache=cache)
    (known,) = ask(LLM(lambda request: None, "m"), REQUESTS[:1], cache=cache)
    assert known == Reply(reply.text, "stop", reply.first_token, 3, 4, cached=True)
    for damaged in ("{", '{"text": 1}', '{"text": "", "new": 2}', "null", "[" * 100_000):
        cache.add_replies("m", {REQUESTS[0].as_json(): damaged})
        assert ask(LLM(lambda request: reply, "m"), REQUESTS[:1], cache=cache) == [reply]


async def test_only_replies_that_the_caller_can_read_are_stored_and_taken(cache):
    busy = Busy()
    llm = LLM(busy.complete, "m")

    def even(place, reply):
        return int(reply.text) % 2 == 0

    ask(llm, REQUESTS[:4], cache=cache, is_answer=even)
    await aask(llm, REQUESTS[4:8], cache=cache, is_answer=even)
    for _ in range(2):  # the first stores the others too
        again = ask(llm, REQUESTS[:8], cache=cache)
        assert [a.cached for a in again[::2]] == [True] * 4
    assert busy.asked == 12
    again = await aask(llm, REQUESTS[:8], cache=cache, is_answer=even)
    assert [a.cached for a in again] == [True, False] * 4


def test_an_interrupted_run_continues_where_it_stopped(cache):
    busy = Busy(fail=dict.fromkeys(map(str, range(10, 20)), KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        ask(LLM(busy.complete, "m"), REQUESTS, cache=cache, concurrency=1)
    before, busy.fail = busy.asked, {}
    answers = ask(LLM(busy.complete, "m"), REQUESTS, cache=cache, concurrency=1)
    assert [a.cached for a in answers] == [True] * 10 + [False] * 10
    assert busy.asked == before + 10


# --- questions with the answer yes or no ----------------------------------------------------------


def test_equal_requests_are_asked_once_and_all_answered(cache):
    asked = []

    def complete(request):
        asked.append(request.user)
        verdict = {"1": " Yes", "2": "no"}.get(request.user, "perhaps")
        finish = "unknown" if request.user == "4" else "stop"
        return Reply(json.dumps({"verdict": verdict}), finish, prompt_tokens=1)

    requests = [Request("s", user, VERDICT) for user in "121324"]
    verdicts, usage = ask_verdicts(LLM(complete, "m"), requests, cache=cache)
    assert [verdicts[i] for i in (0, 1, 2, 4)] == [True, False, True, False]
    assert all(verdicts[i].startswith("unreadable") for i in (3, 5))
    assert usage == Usage(4, 0, 0, 4, 0)
    assert ask_verdicts(LLM(complete, "m"), requests, cache=cache)[0] == verdicts
    assert sorted(asked) == sorted("123434")
