"""The tests keep to this machine: a connection that would leave it is refused, whoever asks."""

from __future__ import annotations

import asyncio
import socket
from urllib.request import ProxyHandler, build_opener

import httpx
import pytest

ELSEWHERE = "192.0.2.1"  # of a range that is nobody's, RFC 5737


def by_urllib():
    build_opener(ProxyHandler({})).open(f"http://{ELSEWHERE}", timeout=1)


def by_httpx():
    httpx.get(f"http://{ELSEWHERE}", timeout=1, trust_env=False)


def by_asyncio():
    asyncio.run(asyncio.wait_for(asyncio.open_connection(ELSEWHERE, 80), 1))


@pytest.mark.parametrize("connect", [by_urllib, by_httpx, by_asyncio])
def test_a_connection_that_leaves_the_machine_is_refused_by_its_address(connect):
    with pytest.raises(UserWarning, match=rf'with host "{ELSEWHERE}" \(allowed: "127.0.0.1,::1"\)'):
        connect()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_connection_on_the_machine_is_not(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind("socket" if family is socket.AF_UNIX else ("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        assert client.getpeername() == server.getsockname()
