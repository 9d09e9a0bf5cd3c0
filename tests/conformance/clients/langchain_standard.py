"""LangChain's standard test suite, with each model through ChatOpenAI: one line for each of its tests."""

import json
import os
import sys

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from report import CLAUDE, GPT, KEY, URL


class Standard(ChatModelIntegrationTests):
    """The suite, configured with the gateway's features."""

    model_name = GPT

    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {"model": self.model_name, "base_url": f"{URL}/v1", "api_key": KEY, "stream_usage": True}

    @property
    def supports_json_mode(self):
        return True


class TestOpenAI(Standard):
    """Model and client of one dialect."""


class TestAnthropic(Standard):
    """A model of the other dialect."""

    model_name = CLAUDE


class Reporter:
    """A pytest plugin that reports in the runner's format."""

    def pytest_runtest_logreport(self, report):
        if report.skipped or (report.when != "call" and not report.failed):
            return
        place, _, name = report.nodeid.rpartition("::")
        model = CLAUDE if "TestAnthropic" in place else GPT
        fault = " ".join(str(report.longrepr).split())[-300:] if report.failed else None
        print("\n" + json.dumps({"check": name, "model": model, "fault": fault}), flush=True)


if __name__ == "__main__":
    alone = ["--noconftest", "-c", os.devnull, "--rootdir", os.path.dirname(__file__), "-p", "no:cacheprovider"]
    loops = [f"asyncio_default_{what}_loop_scope=session" for what in ("test", "fixture")]  # clients outlive a test
    options = ["-q", "-s", "--asyncio-mode=auto", *(part for loop in loops for part in ("-o", loop)), *alone]
    ended = pytest.main([*options, __file__], plugins=[Reporter()])
    sys.exit(0 if ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 1)
