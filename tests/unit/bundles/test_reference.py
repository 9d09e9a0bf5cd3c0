import itertools

import pytest

from svc.bundles.platform import compatible_platforms, detect_platform
from svc.bundles.reference import (
    BundleReference,
    is_prerelease,
    newest_version,
    parse_reference,
    select_entry,
    sort_entries,
    sort_versions,
)
from svc.errors import InvalidRequest
from svc.wire.bundle import BundleEntry


def entry(version: str, target: str = "any", yanked: bool = False) -> BundleEntry:
    return BundleEntry(model_id="m", version=version, target=target, size_bytes=1, path="x", yanked=yanked)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m", BundleReference("m")),
        ("m@latest", BundleReference("m")),
        ("m@1", BundleReference("m", "1")),
        ("a.b_c-d@1.0-rc1", BundleReference("a.b_c-d", "1.0-rc1")),
    ],
)
def test_parse_reference_valid_text_is_parsed(text, expected):
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", ["", "@1", "m@", "../m", "m@..", "m@1@2", "m/n", "-m", ".m", "m@1 2", "ä", "m" * 129])
def test_parse_reference_invalid_text_raises_invalid_request(text):
    with pytest.raises(InvalidRequest):
        parse_reference(text)


@pytest.mark.parametrize(
    "order",
    [
        ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"],
        ["1.0-rc1", "1.0", "1.0.1", "1.2", "1.10", "2"],
        ["2024-01-15", "2024-02-01", "2024-10-01"],
        ["v1", "v2", "v10"],
    ],
)
def test_sort_versions_shuffled_are_ordered(order):
    for shuffled in itertools.islice(itertools.permutations(order), 0, None, 97):
        assert sort_versions(shuffled) == order


def test_sort_entries_orders_by_model_version_and_platform():
    versions = ["1.2", "10", "1.10", "2.0.0-rc1", "2"]
    entries = [entry(version, target) for version in versions for target in ("linux-x86_64", "any")]
    entries.append(BundleEntry(model_id="a", version="3", target="any", size_bytes=1, path="x"))
    found = [f"{each.model_id}@{each.version}/{each.target}" for each in sort_entries(entries)]
    ordered = [f"m@{version}/{target}" for version in sort_versions(versions) for target in ("any", "linux-x86_64")]
    assert found == ["a@3/any", *ordered]
    assert ordered.index("m@1.2/any") < ordered.index("m@1.10/any") < ordered.index("m@10/any")


def test_newest_version_prerelease_is_used_only_without_release():
    assert newest_version(["1.0.0", "2.0.0-rc.1"]) == "1.0.0"
    assert newest_version(["1.0-rc1", "1.0-rc2"]) == "1.0-rc2"
    assert newest_version([]) is None
    assert not is_prerelease("v1.0")
    assert not is_prerelease("2024-01-15")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m", "1.10.0"),
        ("m@1", "1.10.0"),
        ("m@1.2", "1.2.7"),
        ("m@2.0.0", "2.0.0"),
        ("m@3", "3"),
        ("m@9", None),
        ("m@1.2.", None),
    ],
)
def test_select_entry_reference_gives_expected_version(text, expected):
    entries = [entry(version) for version in ("1.2.3", "1.2.7", "1.10.0", "12.0.0-rc1", "3.1-rc1")]
    entries += [entry("2.0.0", yanked=True), entry("3", yanked=True)]
    chosen = select_entry(parse_reference(text), entries, ("linux-x86_64", "any"))
    assert (chosen.version if chosen else None) == expected


def test_select_entry_own_platform_is_preferred_over_any():
    both = [entry("1"), entry("1", "linux-x86_64"), entry("2", "ios-arm64"), entry("1.5")]
    assert select_entry(parse_reference("m@1"), both, compatible_platforms("linux-x86_64")).target == "linux-x86_64"
    assert select_entry(parse_reference("m"), both, compatible_platforms("linux-x86_64")).version == "1.5"
    assert select_entry(parse_reference("m@2"), both, compatible_platforms("linux-x86_64")) is None


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", "linux-x86_64"),
        ("linux", "aarch64", "linux-arm64"),
        ("darwin", "arm64", "macos-arm64"),
        ("win32", "AMD64", "windows-x86_64"),
        ("linux", "riscv64", "linux-riscv64"),
    ],
)
def test_detect_platform_system_and_machine_give_name(system, machine, expected):
    assert detect_platform(system, machine) == expected
