"""A wall clock that a test shifts while a program runs. `environment` is for the program, `shift` for the test."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """Needs a C compiler and Linux."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self._library = folder / "wall_clock.so"
        self.shift(0)
        compiler = shutil.which("cc")
        assert compiler is not None, "this test needs a C compiler, as the hot path does"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE, "-ldl"], check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "TEST_CLOCK": str(self._file)}

    def shift(self, seconds: int) -> None:
        """Set the offset between the program's clock and the real one. The file keeps its inode and size."""
        with self._file.open("r+b" if self._file.exists() else "xb") as file:
            file.write(struct.pack("=q", seconds))
