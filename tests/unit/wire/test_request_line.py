"""Request lines that llhttp accepts and the checker rejects."""

from __future__ import annotations

import httptools
import pytest

from svc.wire.request_line import RequestLineChecker


class Connection:
    """A connection with llhttp, as in the servers. `checked` has the result for each request head."""

    def __init__(self) -> None:
        self.checked: list[bool] = []
        self._lines = RequestLineChecker()
        self._parser = httptools.HttpRequestParser(self)
        self._between, self._in_head, self._url = True, False, b""

    def read(self, data: bytes) -> None:
        self._lines.add(data, is_between_requests=self._between, is_in_head=self._in_head)
        self._parser.feed_data(data)
        if not self._in_head:
            self._lines.clear()

    def on_message_begin(self) -> None:
        self._between, self._in_head, self._url = False, True, b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        self._in_head = False
        version = self._parser.get_http_version()
        self.checked.append(self._lines.matches(self._parser.get_method(), self._url, version))

    def on_message_complete(self) -> None:
        self._between = True


GOOD = [
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\r\n\r\nGET /a?b=c HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://x/a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;a=b\r\n{\r\n0\r\nx: y\r\n\r\n",
]
BAD = [
    b"OPTIONS /a RTSP/1.0\r\nhost: x\r\n\r\n",
    b"SOURCE /a ICE/1.0\r\nhost: x\r\n\r\n",
    b"GET  /a HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET  /a HTTP/1.1\r\nhost: x\r\nx: GET /a HTTP/1.1\r\n\r\n",
    b"GET /a  HTTP/1.1\r\nhost: x\r\n\r\n",
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("requests", [GOOD, GOOD[::-1]])
def test_request_line_valid_in_any_split_matches(requests: list[bytes], size: int) -> None:
    data, connection = b"".join(requests), Connection()
    for start in range(0, len(data), size):
        connection.read(data[start : start + size])
    assert connection.checked == [True] * len(requests)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("request_", BAD)
def test_request_line_invalid_form_is_rejected(request_: bytes, size: int) -> None:
    connection = Connection()
    try:
        for start in range(0, len(request_), size):
            connection.read(request_[start : start + size])
    except httptools.HttpParserError:  # the parser itself rejects the request
        return
    assert connection.checked == [False]


def test_request_line_invalid_after_valid_is_rejected() -> None:
    connection = Connection()
    connection.read(GOOD[3] + BAD[0])
    assert connection.checked == [True, False]
