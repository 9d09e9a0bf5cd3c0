import msgspec

def is_utf8(raw: bytes, /) -> bool: ...
def is_string(value: msgspec.Raw, /) -> bool: ...
def find_closing_quote(raw: bytes, start: int, /) -> int: ...
def scan_object(
    raw: bytes,
    kept_names: tuple[bytes, ...] | None,
    roles: tuple[bytes, ...],
    part_types: tuple[bytes, ...],
    max_string_bytes: int,
    max_nested_bytes: int,
    /,
) -> tuple[bytes, set[str], int, int] | None: ...
