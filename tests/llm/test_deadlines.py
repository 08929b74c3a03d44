"""Waiting for permits, and for a real server that is away."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformal_retrievers.llm import deadlines
from conformal_retrievers.llm.ask import ask
from conformal_retrievers.llm.deadlines import EndpointAway, Pace, patient
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Unanswered

REQUESTS = [Request("Answer.", f"question {i}") for i in range(12)]


@pytest.fixture
def llm(llm_server):
    llm_server.reply = lambda body: body["messages"][-1]["content"]
    return openai_llm("m", base_url=llm_server.url, max_retries=0)


def test_an_overloaded_server_is_asked_again_until_it_answers(llm, llm_server):
    llm_server.trouble = lambda body, times: "429" if times < 3 else None
    answers = ask(patient(llm, patience=30), REQUESTS, concurrency=12)
    assert [answer.text for answer in answers] == [request.user for request in REQUESTS]
    assert len(llm_server.bodies) == 3 * len(REQUESTS)


def test_a_server_that_stays_away_is_given_up_for_all_requests(llm, llm_server):
    llm_server.trouble = lambda body, times: "429"
    both = iter([threading.Barrier(2).wait] * 2)  # are asked before one is given up
    waited = patient(llm, patience=0.5, permit=lambda: 0.0 * next(both, int)())
    with pytest.raises(EndpointAway, match=r"away for 0\.5 s"):
        ask(waited, REQUESTS, concurrency=2)
    assert {json.dumps(body["messages"][-1]) for body in llm_server.bodies} == {
        json.dumps({"role": "user", "content": f"question {i}"}) for i in (0, 1)
    }
    llm_server.bodies.clear()
    with pytest.raises(EndpointAway):
        waited.complete(REQUESTS[2])
    assert len(llm_server.bodies) == 1


SERVER = """
import sys, time
from llm_server import LLMServer
server = LLMServer(reply=lambda body: body["messages"][-1]["content"])
server.trouble = lambda body, times: "slow" if len(server.bodies) > int(sys.argv[2]) else None
server.start(int(sys.argv[1]))
print(server.url, flush=True)
time.sleep(600)
"""


def started(port, answers):
    """Start a process whose server answers so many requests; return it, and the server's URL."""
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(answers)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_a_server_that_is_killed_is_waited_for_until_it_is_there_again():
    process, url = started(0, 3)
    llm, tries = openai_llm("m", base_url=url, max_retries=0), []
    waited = patient(llm, patience=600, permit=lambda: tries.append(1) or 0.0)
    with ThreadPoolExecutor(1) as pool:
        try:
            call = pool.submit(ask, waited, REQUESTS, concurrency=4)
            while len(tries) < 3 + 4:  # three are answered, and four wait
                time.sleep(0.01)
            process.kill()
            process.wait()
            while len(tries) < 3 + 4 + 8:  # connections are refused
                time.sleep(0.01)
            assert not call.done()
            process, _ = started(url.split(":")[2].removesuffix("/v1"), 12)
            answers = call.result()
        finally:
            process.kill()
            process.wait()
    assert [answer.text for answer in answers] == [request.user for request in REQUESTS]


def test_an_error_of_one_request_is_not_waited_for(llm, llm_server):
    llm_server.trouble = lambda body, times: "500" if "question 3" in str(body) else None
    answers = ask(patient(llm, patience=math.inf), REQUESTS)
    assert [i for i, a in enumerate(answers) if isinstance(a, Unanswered)] == [3]
    assert len(llm_server.bodies) == len(REQUESTS)


def test_every_try_takes_a_permit(llm, llm_server):
    taken = []
    llm_server.trouble = lambda body, times: "429" if times == 1 else None
    assert patient(llm, patience=9, permit=lambda: taken.append(1) or 0.0).complete(REQUESTS[0])
    assert len(taken) == len(llm_server.bodies) == 2


def test_permits_are_evenly_apart_and_unused_ones_lapse(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: clock[0])
    pace = Pace(30)
    assert [pace.permit() for _ in range(4)] == [0, 2, 4, 6]
    clock[0] += 5  # the next is free at 108
    assert pace.permit() == 3
    clock[0] += 60
    assert [pace.permit(), pace.permit()] == [0, 2]
