"""The table of platforms and capabilities is the one that `make sdk` writes."""

from tests.typescript_sdk import capabilities


def test_capability_table_has_the_form_that_make_sdk_writes() -> None:
    text = capabilities.table_on_page()
    results = capabilities.parse_table(text)
    assert text == capabilities.table(results)
    assert {"Node", "Chromium"} <= set(results) <= set(capabilities.PLATFORMS)


def test_capability_table_has_a_row_for_each_check() -> None:
    for results in capabilities.parse_table(capabilities.table_on_page()).values():
        assert list(results) == capabilities.capability_names()
        assert set(results.values()) <= {"ok", "absent"}
