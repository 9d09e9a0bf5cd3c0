"""The hints of the pages where something is missing, fails or would be lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console, find_violations
from tests.browser.traffic import CONFIG, MODEL, Traffic
from tests.e2e import harness
from tests.e2e.accounts.test_admin_bundles import make_bundle
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway with a key in its environment, as all of the harness."""
    with Console(tmp_path_factory.mktemp("hints"), provider, CONFIG) as console:
        yield console


@pytest.fixture(scope="module")
def traffic(console: Console, provider: FakeProvider) -> Traffic:
    return Traffic(console, provider)


def test_login_says_which_keys_show_what(console: Console, page: Page) -> None:
    console.open(page, "Overview")
    field = page.get_by_label("API key")
    expect(field).to_have_accessible_description(re.compile("scope admin shows everything, any other key its own data"))
    expect(page.get_by_text("svc keys create --name console --scope admin,chat")).to_be_visible()
    assert not find_violations(page)


@pytest.mark.parametrize("name", ["Playground", "Speech", "Connect"])
def test_admin_key_without_other_scopes_is_told_which_it_needs(
    console: Console, page: Page, traffic: Traffic, name: str
) -> None:
    key = traffic.create_key("admin alone", scopes=["admin"])["key"]
    console.enter(page, key, name)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("lacks the scope")
    expect(alert).to_contain_text("svc keys create --name console --scope admin,chat,speech")
    expect(alert).to_contain_text("svc console")


def test_ordinary_key_sees_its_own_limits_and_spend(console: Console, page: Page, traffic: Traffic) -> None:
    made = traffic.create_key("limited", rpm=4, budget_usd=1.0, budget_period="day", models=[MODEL])
    traffic.wait_for(traffic.send(made["key"]))
    console.enter(page, made["key"], "Keys")
    entry = page.get_by_role("list", name="Your key").get_by_role("listitem")
    expect(entry.get_by_role("heading", name="limited")).to_be_visible()
    expect(entry.get_by_role("meter", name="Requests a minute")).to_have_attribute(
        "aria-valuetext", re.compile(" of 4$")
    )
    expect(entry.get_by_role("meter", name="Spent today")).to_have_attribute(
        "aria-valuetext", re.compile(" of [$]1.00$")
    )
    expect(entry).to_contain_text(MODEL)
    expect(page.get_by_role("button", name=re.compile("Edit|Rotate|Revoke|Create"))).to_have_count(0)
    assert made["key"] not in page.content()
    assert not find_violations(page)


def test_keys_of_the_environment_are_shown_without_their_secrets(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Keys")
    section = page.get_by_role("region", name="Keys of the environment")
    expect(section).to_contain_text("SVC_API_KEYS #1")
    expect(section).to_contain_text("chat, metrics, registry:read, speech")
    expect(section.get_by_role("button")).to_have_count(0)
    assert harness.KEY not in page.content()
    assert not find_violations(page)
    section.get_by_role("link", name="Requests of SVC_API_KEYS #1").click()
    expect(page).to_have_url(re.compile("key=env-"))


def test_overview_names_a_provider_that_fails_sometimes(console: Console, page: Page, traffic: Traffic) -> None:
    traffic.wait_for(traffic.send(console.user_key), traffic.send_failing(console.user_key))
    console.enter(page, console.admin_key)
    degraded = page.get_by_role("region", name="Degraded")
    expect(degraded).to_contain_text(re.compile(r"openai failed [\d.,]+ ?% of \d+ attempts"))
    expect(degraded).to_contain_text("last with provider_error")
    assert not find_violations(page)
    degraded.get_by_role("link", name="its failed requests").click()
    expect(page.get_by_role("region", name="Requests").locator("tbody tr").first).to_contain_text("provider_error")
    page.go_back()
    degraded.get_by_role("link", name="Test the provider").click()
    expect(page.get_by_label("Search")).to_have_value("openai")


def test_unknown_request_says_where_it_could_be(console: Console, page: Page) -> None:
    console.enter(page, console.user_key, "Requests")
    console.open(page, "Requests", "?request=req_unknown")
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("There is no request req_unknown that you may see")
    expect(alert).to_contain_text("Your key sees only its own requests")
    expect(alert).to_contain_text("x-request-id")
    assert not find_violations(page)


def test_refused_request_has_the_tags_of_its_key(console: Console, page: Page, traffic: Traffic) -> None:
    made = traffic.create_key("tagged", rpm=1, tags={"team": "red"})
    traffic.send(made["key"])
    refused = traffic.send(made["key"])
    console.enter(page, console.admin_key, "Requests")
    console.open(page, "Requests", "?tag=team:red&status=refused")
    page.locator(f"a[href*={refused}]").click()
    dialog = page.get_by_role("dialog", name="Request")
    expect(dialog).to_contain_text("Refused 429")
    expect(dialog).to_contain_text("team=red")


def test_wrong_file_is_named_and_the_right_one_follows(console: Console, page: Page, tmp_path: Path) -> None:
    console.enter(page, console.admin_key, "Bundles")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    page.get_by_label("Bundle file").set_input_files(tmp_path / "photo.png")
    expect(page.get_by_role("alert")).to_contain_text("photo.png is not a bundle. A bundle is a .xyb file")
    expect(page.get_by_role("button", name="Upload", exact=True)).to_have_count(0)
    assert not find_violations(page)
    (tmp_path / "right.xyb").write_bytes(make_bundle("right"))
    page.get_by_label("Bundle file").set_input_files(tmp_path / "right.xyb")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_label("Model", exact=True)).to_have_value("right")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Choose a file")).to_be_visible()


def test_dialog_with_input_asks_before_it_closes(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Keys")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Create a key")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Create key").click()
    dialog.get_by_label("Name").fill("kept")
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("What you entered is not saved")
    expect(dialog.get_by_label("Name")).to_have_value("kept")
    dialog.get_by_label("Name").fill("kept again")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="Close", exact=True).click()
    expect(dialog).to_have_count(0)


def test_drawer_closes_with_a_click_beside_it(console: Console, page: Page, traffic: Traffic) -> None:
    id = traffic.send(console.user_key)
    traffic.wait_for(id)
    console.enter(page, console.admin_key, "Requests")
    console.open(page, "Requests", f"?request={id}")
    expect(page.get_by_role("dialog", name="Request")).to_contain_text(id)
    page.mouse.click(20, 400)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("request="))
