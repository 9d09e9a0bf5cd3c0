"""Generates the blocking client `svc/client/client.py` from `svc/client/aio.py`: `make faces`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import svc.client

FOLDER = Path(svc.client.__file__).parent
NAMES = {
    "AsyncClient": "Client",
    "AsyncChatStream": "ChatStream",
    "AsyncLive": "Live",
    "AsyncIterator": "Iterator",
    "AsyncTransport": "BlockingTransport",
    "StopAsyncIteration": "StopIteration",
    "svc.client.async_transport": "svc.client.transport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__anext__": "__next__",
}
TEXTS = {
    "The asyncio client. `make faces` generates the blocking client in `client.py` from this module.": (
        "The blocking client. Generated from `aio.py` by `make faces`: edit that module."
    ),
    "A client for asyncio programs. Belongs to one event loop. Use it as a context manager, or call `close`.": (
        "A blocking client. Thread-safe. Use it as a context manager, or call `close`."
    ),
}


class Blocking(ast.NodeTransformer):
    """Remove `async` and `await` from a module. Coroutines of the core are driven by `run_sync`."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        fields = {name: getattr(node, name) for name in node._fields}
        made = ast.FunctionDef(**{**fields, "name": NAMES.get(node.name, node.name)})
        return self.generic_visit(ast.copy_location(made, node))

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        call = node.value
        own = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == "self"
        )
        return call if own else ast.Call(ast.Name("run_sync"), [call], [])

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = NAMES.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(NAMES.get(node.id, node.id))

    def visit_alias(self, node: ast.alias) -> ast.AST:
        return ast.alias(NAMES.get(node.name, node.name), node.asname)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        loop = node.module == "svc.client.async_transport"
        node.module = NAMES.get(node.module or "", node.module)
        self.generic_visit(node)
        if loop:
            node.names.append(ast.alias("run_sync"))
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(TEXTS.get(node.value, node.value)) if isinstance(node.value, str) else node


def make() -> str:
    """Return the text of the generated module."""
    tree = Blocking().visit(ast.parse((FOLDER / "aio.py").read_text(encoding="utf-8")))
    text = ast.unparse(ast.fix_missing_locations(tree))
    for step in (["check", "--select=I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *step, "--stdin-filename", str(FOLDER / "client.py"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
    return text


if __name__ == "__main__":
    (FOLDER / "client.py").write_text(make(), encoding="utf-8")
