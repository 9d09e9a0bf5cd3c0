"""Forwards the query and some headers of a client's request to an upstream of the same dialect.

Anthropic's clients enable features with `anthropic-beta` and `?beta=true` (docs.anthropic.com, "Beta headers").
Without them, Anthropic rejects the body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class ForwardedHead:
    """The query without its `?`, and the header lines as the client sent them."""

    __slots__ = ("_merged_heads", "header_lines", "query")

    def __init__(self, query: bytes, header_lines: tuple[bytes, ...]) -> None:
        self.query = query
        self.header_lines = header_lines
        self._merged_heads: dict[bytes, bytes] = {}
        """Results of `merge_into` by its argument. Requests of one connection share this object."""

    @property
    def identity(self) -> bytes:
        """A key that is equal if query and header lines are equal."""
        return b"\n".join((self.query, *self.header_lines))

    def merge_into(self, head: bytes) -> bytes:
        """Add the query and the header lines to the head of an upstream request.

        Header lines of `head` with the same names are replaced.
        """
        merged = self._merged_heads.get(head)
        if merged is None:
            merged = self._merged_heads[head] = self._merge(head)
        return merged

    def _merge(self, head: bytes) -> bytes:
        request_line, *header_lines, terminator = head.split(b"\r\n")
        if self.query:
            method, path, version = request_line.split(b" ")
            separator = b"&" if b"?" in path else b"?"
            request_line = b"%b %b%b%b %b" % (method, path, separator, self.query, version)
        names = {_header_name(line) for line in self.header_lines}
        return b"\r\n".join(
            (
                request_line,
                *[line for line in header_lines if _header_name(line) not in names],
                *self.header_lines,
                terminator,
            )
        )


def extract_forwarded_head(
    url: bytes, headers: Iterable[tuple[bytes, bytes]], header_names: Collection[bytes]
) -> ForwardedHead | None:
    """Return the query and the headers in `header_names` (lower case) of a request, or None if it has neither.

    A query that is not printable ASCII, or has a space, is dropped, because servers reject it (RFC 3986, section 3.4).
    """
    query = url.partition(b"#")[0].partition(b"?")[2]
    if not query.isascii() or not query.decode().isprintable() or b" " in query:
        query = b""
    lines = tuple([b"%b: %b" % (name, value) for name, value in headers if name in header_names and value])
    return ForwardedHead(query, lines) if query or lines else None


def _header_name(line: bytes) -> bytes:
    return line.partition(b":")[0]
