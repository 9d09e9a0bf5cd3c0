class ChunkConverter:
    def __new__(
        cls,
        prefix: bytes,
        suffix: bytes,
        padding_end: bytes,
        client_prefix: bytes,
        client_suffix: bytes,
        is_identity: bool,
        /,
    ) -> ChunkConverter: ...
    @property
    def tokens(self) -> int: ...
    @property
    def converted_bytes(self) -> int: ...
    def convert(self, data: bytes, /) -> bytes: ...
