"""The folders of a user's state."""

from __future__ import annotations

import pwd

import pytest

from svc.cli import main


@pytest.mark.parametrize("command", [["doctor"], ["usage"], ["registry", "ls"]])
def test_command_of_user_without_home_folder_exits_2_and_advises_svc_home(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_no_user(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", find_no_user)
    for name in ("HOME", "SVC_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("Set SVC_HOME to a folder that this user may write to.\n")
