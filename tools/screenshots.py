"""Take the screenshots of the page: `python tools/screenshots.py http://127.0.0.1:8000 service`.

Of a service of the Debian data (`mrfrec demo`), in the Chromium that is installed. With `shop`, those of
docs/how-to/shop.md, of the service that the page starts.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
PAGES = {
    "search": "/",
    "item": "/item?item=python3-numpy",
    "history": "/history?item=python3-numpy&item=python3-scipy&item=cython3&novelty=0.3",
}
SHOP = (
    "/history?item=boots-hazel-red&item=scarf-hazel-red&item=hat-hazel-black"
    "&any.in_stock=1&most.price=100&at_most.brand=2&variety=0.2"
)
PAGES_OF = {"service": PAGES, "shop": {"shop": SHOP}}
SIZES = {"desktop": (1200, 1110), "phone": (390, 1080)}
SIZES_OF = {"service": SIZES, "shop": {"desktop": (1200, 1260), "phone": (390, 1400)}}


def main(url: str, kind: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, (width, height) in SIZES_OF[kind].items():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                for name, path in PAGES_OF[kind].items():
                    page.goto(url + path)
                    if name == "search":
                        show_options(page)
                    picture = Image.open(io.BytesIO(page.screenshot()))
                    picture.convert("RGB").save(FOLDER / f"{name}-{size}-{scheme}.webp", quality=75, method=6)
                page.close()
        browser.close()


def show_options(page: Page) -> None:
    """Type into the search box, and go to the third item that is found."""
    box = page.get_by_role("combobox", name="Find an item")
    box.press_sequentially("libgtk")
    page.get_by_role("option", name="libgtk-3-dev").wait_for()
    page.wait_for_timeout(500)
    for _ in range(3):
        box.press("ArrowDown")


if __name__ == "__main__":
    main(*sys.argv[1:])
