"""The part of a client's request head that goes on to an upstream of the client's own dialect.

Anthropic's clients switch features on by `anthropic-beta` and `?beta=true` (docs.anthropic.com, "Beta headers"): the
body is not valid there without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class ForwardedHead:
    """The query string without its `?`, and header lines as the client sent them."""

    __slots__ = ("_merged_heads", "header_lines", "query")

    def __init__(self, query: bytes, header_lines: tuple[bytes, ...]) -> None:
        self.query = query
        self.header_lines = header_lines
        self._merged_heads: dict[bytes, bytes] = {}
        """Merged heads: requests of one connection share this object."""

    @property
    def identity(self) -> bytes:
        """Equal for requests whose heads are equal for an upstream."""
        return b"\n".join((self.query, *self.header_lines))

    def merge_into(self, head: bytes) -> bytes:
        """Add the query to the head of a request to an upstream, and replace its lines of the same names."""
        merged = self._merged_heads.get(head)
        if merged is None:
            merged = self._merged_heads[head] = self._merge(head)
        return merged

    def _merge(self, head: bytes) -> bytes:
        request_line, *header_lines, terminator = head.split(b"\r\n")
        if self.query:
            method, path, version = request_line.split(b" ")
            request_line = b"%b %b?%b %b" % (method, path, self.query, version)
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
    """The query and the headers of `names` (lower case) of a request; None if it has neither.

    A query that is not printable ASCII is left out, since servers refuse it.
    """
    query = url.partition(b"#")[0].partition(b"?")[2]
    if not query.isascii() or not query.decode().isprintable() or b" " in query:
        query = b""
    lines = tuple([b"%b: %b" % (name, value) for name, value in headers if name in header_names and value])
    return ForwardedHead(query, lines) if query or lines else None


def _header_name(line: bytes) -> bytes:
    return line.partition(b":")[0]
