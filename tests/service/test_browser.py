"""The page in a real browser, by mouse and by keyboard, with scripts and without, on a phone, in the dark."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mrfrec import MRF, RefusedError, nightly
from mrfrec.service import ServiceSettings, create_app

from odd_models import ODD, TITLES, fitted
from servers import save_keys, save_products, save_shop, serving

# A browser is slow; and one of the models has a single item.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:column 'item' has one item")]

FILTERED = (
    '/history?model=products&item=p1&where={"category":"shoes","price":{"least":6},"in_stock":true}'
    '&at_most={"category":1}&variety=0.3'
)
PATHS = [
    "/", "/search?q=the", "/item?item=tea", "/history", "/history?item=milk&item=tea&item=caviar", "/model",
    "/?model=odd", "/search?model=odd&q=e", "/item?model=odd&item=%22quotes%22+%26+%3Cb%3E",
    "/history?model=odd&item=100%25&item=a%2Bb+c", "/item?model=many&item=5",
    "/history?model=many&item=5&item=8", "/history?model=products&item=p1", FILTERED,
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed, so the page is not tested in a browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("browser")
    files = {
        "shop": save_shop(folder / "shop.mrf"),
        "odd": fitted(ODD, TITLES, folder / "odd.mrf"),
        "products": save_products(folder / "products.mrf"),
        "many": fitted(
            [*range(60)],
            [f"a title of so many words {'or so many more ' * 3}{number}" for number in range(60)],
            folder / "many.mrf",
            MRF(threads=1),
        ),
    }
    titles = [
        f"{letter} words of a title " * 500 if letter in "ace" else letter * 10_000 for letter in "abcdef"
    ]
    files["long"] = fitted([f"sku-{i}" for i in range(6)], titles, folder / "long.mrf")
    files["ids"] = fitted([f"sku-{letter}" * 1000 for letter in "abcdef"], None, folder / "ids.mrf")
    with serving(create_app(files, settings=ServiceSettings(poll=0))) as url:
        yield url


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Open a page, and fail at any error of a script, of loading, or of the policy."""
    faults: list[str] = []
    with browser.new_context(base_url=url, reduced_motion="reduce", **options) as context:
        page = context.new_page()
        page.on(
            "console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("requestfailed", lambda request: faults.append(f"{request.url}: {request.failure}"))
        page.on(
            "request", lambda request: None if request.url.startswith(url) else faults.append(request.url)
        )
        yield page
    # A search that another follows is given up.
    assert [fault for fault in faults if "ERR_ABORTED" not in fault] == []


def test_search_as_you_type_by_keyboard(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/")
        box = page.get_by_role("combobox", name="Find an item")
        box.press_sequentially("the", delay=10)
        options = page.get_by_role("listbox").get_by_role("option")
        expect(options).to_have_count(7)
        expect(box).to_have_attribute("aria-expanded", "true")
        expect(page.get_by_role("status")).to_have_text("7 items")
        assert Axe().run(page).violations_count == 0
        box.press("ArrowDown")
        box.press("ArrowDown")
        second = options.nth(1)
        expect(second).to_have_attribute("aria-selected", "true")
        expect(box).to_have_attribute("aria-activedescendant", second.get_attribute("id") or "?")
        box.press("ArrowUp")
        box.press("ArrowUp")  # from the first to the last
        expect(options.nth(6)).to_have_attribute("aria-selected", "true")
        box.press("Escape")
        expect(page.get_by_role("listbox")).to_be_hidden()
        box.press("ArrowDown")
        name = options.nth(0).locator(".item").inner_text()
        box.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_search_by_mouse_and_by_the_form(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/?model=odd")
        box = page.get_by_role("combobox", name="Find an item")
        box.fill("script")
        page.get_by_role("listbox").get_by_role("option").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("<script>alert(1)</script>")
        box = page.get_by_role("combobox", name="Find another item")
        box.fill("emoji")
        box.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Search")
        page.get_by_role("link", name=TITLES[3], exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(TITLES[3])
        expect(page.locator(".lead")).to_have_text("[🦊 emoji]")
        assert "model=odd" in page.url


def test_a_node_of_the_graph_is_a_link(browser: Browser, url: str) -> None:
    for width, kind in ((1200, "wide"), (390, "narrow")):
        with opened(browser, url, viewport={"width": width, "height": 800}) as page:
            page.goto("/item?item=tea")
            graph = page.locator("figure.graph > svg:visible")
            expect(graph).to_have_class(kind)
            node = graph.get_by_role("link").first
            name = (node.get_attribute("aria-label") or "").partition(",")[0]
            node.focus()
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1)).to_have_text(name)
            page.go_back()
            graph.locator(f"a.node:has-text('{name}')").click()
            expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_a_history_is_put_together_and_taken_apart(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/history")
        for name in ("milk", "tea"):
            box = page.get_by_role("combobox", name="Add an item")
            box.fill(name)
            expect(page.get_by_role("listbox").get_by_role("option").first).to_contain_text(name)
            box.press("ArrowDown")
            box.press("Enter")
            expect(page.get_by_role("link", name=f"Remove the {name}")).to_be_visible()
        assert page.url.endswith("/history?item=milk&item=tea")
        cards = page.locator(".recommended > li")
        expect(cards).to_have_count(5)
        expect(cards.first.locator("tbody tr")).to_have_count(3)  # two items and the base score
        first = cards.first.locator("h3 a").inner_text()
        cards.first.get_by_role("link", name=f"Add {first}").click()
        expect(page.get_by_role("link", name=f"Remove {first}")).to_be_visible()
        page.get_by_role("link", name="Remove the milk").click()
        expect(page.get_by_role("link", name="Remove the milk")).to_have_count(0)
        expect(page.get_by_role("link", name="Remove the tea")).to_be_visible()


def test_the_slider_applies_at_once(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/history?item=milk&item=tea")
        slider = page.get_by_role("slider", name="Novelty")
        expect(page.get_by_role("button", name="Apply")).to_be_hidden()
        before = page.locator(".score").all_inner_texts()
        slider.press("End")
        page.wait_for_url("**/history?novelty=1&item=milk&item=tea")
        expect(page.locator("output")).to_have_text("1.00")
        assert page.locator(".score").all_inner_texts() != before


def test_another_model_is_chosen_at_once(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/")
        page.get_by_label("Model", exact=True).select_option("odd")
        page.wait_for_url("**/?model=odd")
        page.get_by_role("navigation").get_by_role("link", name="Model").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("The model odd")


def test_everything_can_be_read_without_scripts(browser: Browser, url: str) -> None:
    with opened(browser, url, java_script_enabled=False) as page:
        page.goto("/history?item=milk")
        page.get_by_role("searchbox", name="Add an item").fill("tea")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name="Add the tea to the history").click()
        assert page.url.endswith("/history?item=milk&item=tea")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator(".recommended > li")).to_have_count(5)
        assert "novelty=" in page.url
        page.goto(FILTERED)
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("items are left by the filter")).to_be_visible()
        page.get_by_role("link", name="Leave them out").click()
        expect(page.get_by_text("items are left by the filter")).to_have_count(0)
        page.goto("/item?item=tea")
        expect(page.locator("figure.graph > svg:visible")).to_be_visible()
        page.get_by_label("Model", exact=True).select_option("many")
        page.get_by_role("button", name="Choose").click()
        page.wait_for_url("**/?model=many")


def test_a_key_is_the_password_of_the_page(browser: Browser, tmp_path: Path) -> None:
    secret, _ = save_keys(tmp_path / "keys")
    app = create_app(
        save_shop(tmp_path / "shop.mrf"), settings=ServiceSettings(keys=tmp_path / "keys", poll=0)
    )
    with serving(app) as url:
        login: Any = {"username": "anybody", "password": secret}
        with opened(browser, url, http_credentials=login) as page:
            page.goto("/")
            page.get_by_role("combobox", name="Find an item").fill("milk")
            page.get_by_role("listbox").get_by_role("option").first.click()
            expect(page.get_by_role("heading", level=1)).to_have_text("the milk")


def test_the_keyboard_goes_to_the_content_first(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.goto("/item?item=tea")
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


@pytest.mark.parametrize("path", PATHS)
def test_pages_fit_a_phone_and_have_no_fault_of_accessibility(browser: Browser, url: str, path: str) -> None:
    for scheme, width in (("light", 1200), ("dark", 360)):
        size = {"width": width, "height": 740}
        with opened(browser, url, viewport=size, color_scheme=scheme) as page:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [1200, 360])
def test_long_titles_and_ids_are_cut(browser: Browser, url: str, width: int) -> None:
    with opened(browser, url, viewport={"width": width, "height": 740}) as page:
        paths = ["/?model={}", "/search?model={}&q=sku", "/history?model={}", "/item?model=long&item=sku-1"]
        paths += ["/history?model=long&item=sku-1&item=sku-2"]
        for path in [path.format(name) for path in paths for name in ("long", "ids")]:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollHeight") < 5000, path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_text_ids_are_shown_by_their_titles(browser: Browser, url: str) -> None:
    with opened(browser, url, viewport={"width": 1200, "height": 740}) as page:
        page.goto("/item?item=tea")
        expect(page.get_by_role("heading", level=1)).to_have_text("the tea")
        node = page.locator("figure.graph > svg:visible a.node").first
        label = node.locator("text").text_content() or ""
        assert label.startswith("the ")
        assert (node.locator("title").text_content() or "").startswith(
            f"{label} [{label.removeprefix('the ')}]: "
        )
        page.goto("/history?item=milk")
        bar = page.locator(".reasons tbody th").first
        expect(bar).to_have_text("the milk [milk]")
        expect(bar.get_by_role("link")).to_have_attribute("title", "the milk [milk]")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_the_report_of_a_nightly_job_fits_a_phone(
    browser: Browser, tmp_path: Path, scheme: Any, width: int
) -> None:
    rows = [(user, item) for user in range(40) for item in range(8) if (user + item) % 3]
    lines = [f"{user},{item},{'endless' * 20}{item}" for user, item in rows]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,title", *lines]))
    job = tmp_path / f"{'shop' * 20}.toml"
    job.write_text('[source]\ndata = "events.csv"\n[guard]\nheldout = 0.4\n[publish]\nmodel = "shop.mrf"\n')
    nightly.run(job)
    nightly.run(job)
    (tmp_path / "events.csv").write_text("\n".join(["user,item,title", *lines[:100]]))
    with pytest.raises(RefusedError):
        nightly.run(job)
    with opened(browser, "file://", viewport={"width": width, "height": 740}, color_scheme=scheme) as page:
        page.goto((tmp_path / "shop.report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(page.locator("figure svg")).to_have_count(6)
        expect(page.locator("ul.why")).to_be_in_viewport()  # the reasons come first
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
