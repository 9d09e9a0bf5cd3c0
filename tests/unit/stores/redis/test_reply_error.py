"""The kind of an error reply, in the texts of several versions of Redis."""

from __future__ import annotations

import pytest

from svc.stores.redis.base import RedisReplyError

AT = "@user_script:8"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", "NOSCRIPT"),
        ("MOVED 3999 127.0.0.1:6381", "MOVED"),
        (f"ERR Error running script (call to f_1): {AT}: {AT}: -READONLY You can't write.", "READONLY"),
        (f"ERR Error running script (call to f_1): {AT}: {AT}: -OOM command not allowed.", "OOM"),
        (f"OOM command not allowed when used memory > 'maxmemory'. script: 1, on {AT}.", "OOM"),
        (
            f"ERR Error running script (f_1): {AT}: The user executing the script can't run this command",
            "NOPERM",
        ),
        (f"ERR The user executing the script can't run this command or subcommand script: 1, on {AT}.", "NOPERM"),
        (
            f"ERR ACL failure in script: User a has no permissions to run the 'hmget' command on {AT}.",
            "NOPERM",
        ),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE"),
    ],
)
def test_redis_reply_error_has_the_kind_of_the_command_in_a_script(text: str, kind: str) -> None:
    assert RedisReplyError(text).kind == kind
