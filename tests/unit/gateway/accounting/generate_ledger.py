"""Generates code, a reference page and migrations from the table of ledger fields: `make ledger`.

The table is `svc/stores/database/ledger_fields.toml`. Generated code lies between two comments that name it.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from svc.stores.database.migrations import SUMS_INDEX, load_migrations

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "src" / "svc"
TABLE = SOURCE / "stores" / "database" / "ledger_fields.toml"
MODULES = (
    SOURCE / "stores" / "database" / "base.py",
    SOURCE / "stores" / "database" / "segment.py",
    SOURCE / "stores" / "database" / "segment_summary.py",
    SOURCE / "gateway" / "accounting" / "record.py",
    SOURCE / "wire" / "usage.py",
)
SCHEMA = SOURCE / "stores" / "database" / "schema"
PAGE = ROOT / "docs" / "reference" / "ledger.md"
REGION = re.compile(r"( *)# begin: ([a-z ]+), from ledger_fields.toml by `make ledger`\n.*?# end: \2\n", flags=re.S)
POSITIONAL = ("endpoint", "requested_model", "status", "http_status")
"""Positional attributes of RequestRecord, after the key."""
USAGE_POSITIONAL = (*("prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens"),)
"""The first arguments of TokenUsage. New ones follow."""
MAX_LITERAL_CHARACTERS = 110
OTHER_ATTRIBUTES = {
    'limit_name: str = ""': "The limit that rejected the request (see `RateLimited`), or empty.",
    "limit_state: LimitState | None = None": "The use of that limit of the key. None for other limits.",
    'error_message: str = ""': "The message of the error that ended the request, or empty.",
    "last_attempt: AttemptRecord | None = None": "The last attempt that ended, if an observer needs attempts.",
    'trace_context: bytes = b""': "The header lines of the client's trace, or empty.",
    'client_field: bytes = b""': "The end of the access log line, see `encode_client_field`.",
    "is_timed: bool = True": "Whether the duration is a latency. The client determines the duration of live speech.",
}
"""Attributes of RequestRecord that entries do not have."""
JSON_OF_TYPE = {"str": "text", "int": "integer", "bool": "boolean"}
JSON_LITERALS = {"None": "null", "False": "false", "()": "null"}
SUM_TABLES = ("hours", "days", "status_hours")
COLUMN_TYPES = {"int": "BIGINT", "float": "DOUBLE PRECISION"}
PAGE_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict[str, str]": "object of strings",
    "list[AttemptDetail]": "array of objects",
}
TOP = """# Ledger fields

`make ledger` generates this page from `src/svc/stores/database/ledger_fields.toml`.

The ledger has one entry for each request that the gateway sent to a provider or served from the cache.
`svc usage --json`, `GET /v1/usage`, `GET /v1/admin/usage`, the journal and the [access log](logs.md#access-log) show
its fields. An unknown value is null, never 0. An entry contains no text of a prompt or a completion.

| Field | Type | Meaning |
|---|---|---|
"""
MIDDLE = """
`attempts_detail` is null in the journal and in the access log if one attempt was made over an open connection and it
succeeded, because the other fields describe that attempt. The API and `svc usage` show it as a list of one, with
`latency_ms` as its time. They show null if a version that did not record attempts wrote the entry, and several attempts
were made.

`svc usage --request ID` and the parameter `request` of the API show the entry of one request. It also has
`cost_formula`, which shows how the cost results from prices in USD per million tokens, such as
`(10 x 0.15 + 5 x 0.6) / 1000000`. It is null if the current prices of the model do not lead to this cost.
`cost_terms` has the name of each product, such as `cached input tokens`, with its `count`, `usd_per_million` and `usd`.

## Attempts

Each object of `attempts_detail` has these fields.

| Field | Type | Meaning |
|---|---|---|
"""
BOTTOM = """
## Sums

`[ledger] retain_days` limits how long entries are kept. Their number and their sums by hour and by day are kept
forever.

| Part of a sum | Fields |
|---|---|
"""


@dataclass(frozen=True)
class Field:
    """One line of the table. `ledger_fields.toml` documents each part."""

    name: str
    type: str
    doc: str
    default: str | None = None
    record: str = ""
    value: str = ""
    json: str = ""
    null_if: str = ""
    shared: bool = False
    usual: str = ""
    usual_if: str = ""
    column: str = ""

    @property
    def declaration(self) -> str:
        """The declaration of the record's attribute. Empty if the value has another source."""
        default = f" = {self.default}" if self.usual and self.default is not None else ""
        return "" if self.value else self.record or f"{self.name}: {self.type}{default}"

    @property
    def attribute(self) -> str:
        return self.declaration.partition(":")[0]

    @property
    def expression(self) -> str:
        """The expression of the value in the encoder."""
        return self.value or f"record.{self.attribute}"

    @property
    def is_usage(self) -> bool:
        return self.value.startswith("usage.")

    @property
    def total_type(self) -> str:
        """The type of the field's total."""
        return self.type.removesuffix(" | None")

    @property
    def placeholder(self) -> str:
        kind = self.json or JSON_OF_TYPE.get(self.type.removesuffix(" | None"), "")
        return f'"{self.name}":' + {"plain": '"%b"', "integer": "%d"}.get(kind, "%b")

    @property
    def argument(self) -> str:
        """The expression that fills the placeholder, as bytes or as an integer."""
        return self._null_or(self._encoded())

    def _encoded(self) -> str:
        value = self.expression
        kind = self.json or JSON_OF_TYPE[self.type.removesuffix(" | None")]
        calls = {"count": "number", "usd": "usd", "milliseconds": "milliseconds", "attempts": "attempts"}
        if kind in calls:
            return f"_encode_{calls[kind]}({value})"
        return {
            "plain": f"{value}.encode()",
            "text": f"_encode_text({value})",
            "integer": value,
            "boolean": f"_JSON_BOOLEANS[{value}]",
        }[kind]

    def _null_or(self, encoded: str) -> str:
        conditions = [self.null_if] if self.null_if else []
        if self.json in ("usd", "milliseconds") and "None" in self.type:
            conditions.append(f"{self.expression} is None")
        elif self.is_usage and self.usual:
            conditions.append("usage is None")
        return f"JSON_NULL if {' or '.join(conditions)} else {encoded}" if conditions else encoded

    @property
    def is_usual(self) -> str:
        """The condition under which the value is the usual one."""
        known = "usage is not None and " if self.is_usage else ""
        if self.usual_if:
            return known + self.usual_if
        if self.usual == "None":
            return f"{self.expression} is None"
        negation = f"not {self.expression}" if self.usual in ("False", "0", "()") else ""
        return known + (negation or f"{self.expression} == {self.usual}")

    @property
    def segment_kind(self) -> str:
        """The kind of the field. Adjacent fields of one kind are encoded together."""
        if self.shared:
            return "shared"
        if self.usual:
            return "usual"
        return "usage" if self.is_usage else "single"


def fields(table: str) -> list[Field]:
    """Return the lines of the table `entry` or `attempt`."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))[table]
    return [Field(name, **row) for name, row in rows.items()]


def entry_region() -> str:
    """Return the structs that the journal and the database are decoded into."""
    attempt = _struct("AttemptDetail", "One attempt at a provider, in a ledger entry.", fields("attempt"))
    about = "One request that was sent to a provider or served from the cache. Unknown values are null, never 0."
    return f"{attempt}\n\n{_struct('LedgerEntry', about, fields('entry'))}"


def _struct(name: str, about: str, members: list[Field]) -> str:
    lines = [f"class {name}(msgspec.Struct, frozen=True, kw_only=True):", f'    """{about}"""\n']
    for field in members:
        default = "" if field.default is None else f" = {field.default}"
        lines.append(f'    {field.name}: {field.type}{default}\n    """{field.doc}"""')
    return "\n".join(lines) + "\n"


def request_record_region() -> str:
    """Return the slots and the constructor. Attributes that entries do not have come last."""
    own = [field.declaration for field in fields("entry") if field.declaration]
    named = {declaration.partition(":")[0]: declaration for declaration in own}
    keyed = [each for name, each in named.items() if name not in POSITIONAL]
    required, optional = [each for each in keyed if "=" not in each], [each for each in keyed if "=" in each]
    extra = ["bill: Bill = EMPTY_BILL", *optional, *OTHER_ATTRIBUTES]
    declarations = ["key: ApiKey", *(named[name] for name in POSITIONAL), "*", *required, *extra]
    names = [each.partition(":")[0] for each in declarations if each != "*"]
    slots = ", ".join(f'"{name}"' for name in sorted([*names, "line"]))
    documented = {**OTHER_ATTRIBUTES, "line: bytes": "The encoded record, set by the first observer that needs it."}
    docs = "".join(f'    {each.partition(" =")[0]}\n    """{doc}"""\n' for each, doc in documented.items())
    body = "".join(f"        self.{name} = {name}\n" for name in names) + '        self.line = b""\n'
    return f"    __slots__ = ({slots},)\n\n{docs}\n    def __init__(self, {', '.join(declarations)},) -> None:\n{body}"


def attempt_encoder_region() -> str:
    members = fields("attempt")
    arguments = ", ".join(field.argument for field in members)
    return (
        "def _encode_attempt(record: AttemptRecord) -> bytes:\n"
        f"    return {_template(members, '{', '}')} % ({arguments},)\n"
    )


def encoder_region() -> str:
    """Return `encode_record` and the functions that it calls for adjacent fields of one kind."""
    template, arguments, functions, constants = [], [], [], []
    for kind, members in _segments():
        first = kind == "single" and not arguments
        if kind == "single":
            template.append(_template(members, "{" if first else ","))
            arguments += [field.argument for field in members]
            continue
        name = f"{members[0].name}_to_{members[-1].name}"
        template.append("b'%b'")
        if kind == "shared":
            names = ["key", *(field.attribute for field in members if field.attribute)]
            arguments.append(f"_encode_shared_fields({', '.join(f'record.{each}' for each in names)})")
        elif kind == "usage":
            nulls = ",".join(f'"{field.name}":null' for field in members)
            constants.append(f"_NULL_{name.upper()}: Final = b',{nulls}'")
            arguments.append(f"_NULL_{name.upper()} if usage is None else _encode_{name}(usage, bill)")
            functions.append(_group_function(name, "usage: TokenUsage, bill: Bill", "", members))
        else:
            usual = ",".join(f'"{field.name}":{_json_literal(field.usual)}' for field in members)
            constants.append(f"_USUAL_{name.upper()}: Final = {_wrap_literal(f',{usual}')}")
            conditions = " and ".join(field.is_usual for field in members).split(" and ")
            condition = " and ".join(dict.fromkeys(conditions))  # each condition once
            arguments.append(f"_USUAL_{name.upper()} if {condition} else _encode_{name}(record)")
            functions.append(_group_function(name, "record: RequestRecord", _roots(members), members))
    shared = [field for kind, members in _segments() if kind == "shared" for field in members]
    return "\n\n".join(["\n".join(constants), _encode_function(template, arguments), *functions, _shared(shared)])


def _wrap_literal(text: str) -> str:
    """Return a bytes literal, in parts if it is longer than a line."""
    parts = [""]
    for piece in re.split("(?=,)", text):
        if len(parts[-1]) + len(piece) > MAX_LITERAL_CHARACTERS:
            parts.append("")
        parts[-1] += piece
    literal = " ".join(f"b'{part}'" for part in parts)
    return literal if len(parts) == 1 else f"({literal})"


def _segments() -> Iterator[tuple[str, list[Field]]]:
    for kind, members in groupby(fields("entry"), lambda field: field.segment_kind):
        yield kind, list(members)


def _template(members: list[Field], begin: str, end: str = "") -> str:
    parts = [field.placeholder for field in members]
    parts = [(begin if number == 0 else ",") + part for number, part in enumerate(parts)]
    return " ".join(f"b'{part}'" for part in [*parts[:-1], parts[-1] + end])


def _group_function(name: str, parameters: str, roots: str, members: list[Field]) -> str:
    arguments = ", ".join(field.argument for field in members)
    return f"def _encode_{name}({parameters}) -> bytes:\n{roots}    return {_template(members, ',')} % ({arguments},)\n"


def _roots(members: list[Field]) -> str:
    """Return assignments for the names that the values begin with."""
    values = [field.value for field in members]
    bill = any(value.startswith("bill.") for value in values)
    usage = any(value.startswith("usage.") for value in values)
    return ("    bill = record.bill\n" if bill else "") + ("    usage = record.bill.usage\n" if usage else "")


def _encode_function(template: list[str], arguments: list[str]) -> str:
    return f'''
def encode_record(record: RequestRecord) -> bytes:
    """Return the JSON object without its closing brace, because the access log appends fields.

    Fields are in the order of LedgerEntry, which makes decoding faster.
    """
    bill, usage = record.bill, record.bill.usage
    return ({" ".join(template)}) % ({", ".join(arguments)},)
'''


def _shared(shared: list[Field]) -> str:
    parameters = ["key: ApiKey", *(field.declaration for field in shared if field.attribute)]
    pairs = ", ".join(f'"{field.name}": {field.value or field.attribute}' for field in shared)
    return f"""
@functools.lru_cache(maxsize=1024)
def _encode_shared_fields({", ".join(parameters)}) -> bytes:
    fields = {{{pairs},}}
    return b"," + escape_unprintable(msgspec.json.encode(fields))[1:-1]
"""


def totals() -> list[Field]:
    """The fields that are summed. Raises ValueError for one that the summary of a segment cannot sum."""
    found = [field for field in fields("entry") if field.column == "total"]
    for field in found:
        if not field.is_usage and field.value != "bill.cost_usd":
            raise ValueError(f"{field.name}: only a count of `usage` and `bill.cost_usd` can have a total")
    return found


def field_totals_region() -> str:
    """The totals in memory."""
    lines = [f"    {field.name}: {field.total_type} = {_zero(field)}\n" for field in totals()]
    return (
        "class FieldTotals(msgspec.Struct):\n"
        f'    """The totals of the fields of entries that are summed."""\n\n{"".join(lines)}\n'
    )


def usage_sum_region() -> str:
    """The totals in the result of a query."""
    lines = []
    for field in totals():
        is_cost = field.value == "bill.cost_usd"
        lines.append(f"    {field.name}: {field.total_type}{' | None' if is_cost else ''}\n")
        if is_cost:
            lines.append('    """None if no request\'s price is known."""\n')
    return "".join(lines)


def group_totals_region() -> str:
    """The totals that are recorded while lines are written. msgspec structs cannot be compiled."""
    slots = ", ".join(f'"{name}"' for name in sorted(field.name for field in totals()))
    starts = "".join(f"        self.{field.name} = {_zero(field)}\n" for field in totals())
    about = "The totals of FieldTotals, in a class that can be compiled."
    return (
        f'class GroupTotals:\n    """{about}"""\n\n    __slots__ = ({slots},)\n\n'
        f"    def __init__(self) -> None:\n{starts}\n\n"
    )


def add_usage_region() -> str:
    """A statement of `SegmentSummary.add_line`."""
    body = "".join(f"            group.{field.name} += {field.value}\n" for field in totals() if field.is_usage)
    return f"        if usage is not None:\n{body}"


def _zero(field: Field) -> str:
    return "0.0" if field.total_type == "float" else "0"


def token_usage_region() -> str:
    """Slots, constructor and `as_tuple` of TokenUsage."""
    found = [field.value.removeprefix("usage.") for field in fields("entry") if field.is_usage]
    names = [*USAGE_POSITIONAL, *(name for name in found if name not in USAGE_POSITIONAL)]
    slots = ", ".join(f'"{name}"' for name in sorted(names))
    ordered = ", ".join(f'"{name}"' for name in names)
    parameters = ", ".join(f"{name}: int = 0" for name in names)
    body = "".join(f"        self.{name} = {name}\n" for name in names)
    return (
        f"    __slots__ = ({slots},)\n\n    count_names: ClassVar[tuple[str, ...]] = ({ordered},)\n"
        '    """The names of the counts, in the order of the constructor. A compiled class has no `__slots__`."""\n\n'
        f"    def __init__(self, {parameters},) -> None:\n{body}\n"
        f"    def as_tuple(self) -> tuple[{', '.join(['int'] * len(names))}]:\n"
        '        """Return the counts in the order of the constructor."""\n'
        f"        return ({', '.join(f'self.{name}' for name in names)},)\n"
    )


def migration() -> dict[Path, str]:
    """The next file of the schema, if the tables of sums have no column for a total."""
    files = sorted(SCHEMA.glob("*.sql"))
    database = sqlite3.connect(":memory:")
    for file in files:
        database.executescript(file.read_text(encoding="utf-8"))
    columns = {name for _, name, *_ in database.execute(f"PRAGMA table_info({SUM_TABLES[0]})")}
    database.close()
    statements = [
        f"ALTER TABLE {table} ADD COLUMN {field.name} {COLUMN_TYPES[field.total_type]} NOT NULL DEFAULT 0"
        for field in totals()
        if field.name not in columns
        for table in SUM_TABLES
    ]
    if not statements:
        return {}
    about = (
        f"-- Oldest program: {load_migrations()[-1].oldest}\n"
        "-- Made by `make ledger` from ledger_fields.toml: totals that the sums by hour and by day lack."
    )
    statements += [
        f"DROP INDEX IF EXISTS {SUMS_INDEX}",
        f"CREATE INDEX {SUMS_INDEX} ON batches (last) WHERE sums_version < {len(files) + 1}",
    ]
    text = ";\n\n".join(statements)
    return {SCHEMA / f"{len(files) + 1:04d}.sql": f"{about}\n\n{text}\n"}


def _json_literal(literal: str) -> str:
    return JSON_LITERALS.get(literal, literal)


def page() -> str:
    """Return the reference page."""
    entry = fields("entry")
    sums = {
        "Entries are summed up by": names_of("sum"),
        "The newest value is kept of": names_of("label"),
        "The total is kept of": names_of("total"),
    }
    rows = "".join(f"| {what} | {', '.join(f'`{name}`' for name in names)} |\n" for what, names in sums.items())
    return TOP + _rows(entry) + MIDDLE + _rows(fields("attempt")) + BOTTOM + rows


def names_of(column: str) -> list[str]:
    """Return the names of the fields that have a database column of this kind."""
    return [field.name for field in fields("entry") if field.column == column]


def _rows(members: list[Field]) -> str:
    return "".join(f"| `{field.name}` | {_page_type(field.type)} | {field.doc} |\n" for field in members)


def _page_type(type: str) -> str:
    plain = type.removesuffix(" | None")
    return PAGE_TYPES[plain] + (" or null" if plain != type else "")


REGIONS = {
    "entry": entry_region,
    "request record": request_record_region,
    "encoder": encoder_region,
    "attempt encoder": attempt_encoder_region,
    "field totals": field_totals_region,
    "usage sum": usage_sum_region,
    "group totals": group_totals_region,
    "add usage": add_usage_region,
    "token usage": token_usage_region,
}


def module(path: Path) -> str:
    """Return the formatted text of a module with its regions generated."""

    def replace(match: re.Match[str]) -> str:
        begin = match[0].partition("\n")[0]
        return f"{begin}\n{REGIONS[match[2]]()}{match[1]}# end: {match[2]}\n"

    text = REGION.sub(replace, path.read_text(encoding="utf-8"))
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


def make() -> dict[Path, str]:
    """Return the text of every generated file."""
    return {path: module(path) for path in MODULES} | {PAGE: page()} | migration()


if __name__ == "__main__":
    for path, text in make().items():
        path.write_text(text, encoding="utf-8")
