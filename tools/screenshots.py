"""Take the screenshots of the service: `python tools/screenshots.py http://127.0.0.1:8000 service`.

Of a service of the Debian data (`mrfrec demo`), in the Chromium that is installed. With `shop`, those of
docs/how-to/shop.md, of the service that the page starts.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
ITEM = "/item?item=python3-numpy"
HISTORY = "/history?item=python3-numpy&item=python3-scipy&item=cython3&novelty=0.3"
SHOP = (
    "/history?item=boots-hazel-red&item=scarf-hazel-red&item=hat-hazel-black"
    "&any.in_stock=1&most.price=100&at_most.brand=2&variety=0.2"
)
SIZES = {"desktop": (1200, 1110), "phone": (390, 1080)}
SHOP_SIZES = {"desktop": (1200, 1260), "phone": (390, 1400)}
# The address of each picture, and its size.
SERVICE_PICTURES = {
    "item-desktop-light": (ITEM, SIZES["desktop"]),
    "item-desktop-dark": (ITEM, SIZES["desktop"]),
    "history-desktop-light": (HISTORY, SIZES["desktop"]),
    "history-phone-dark": (HISTORY, SIZES["phone"]),
}
SHOP_PICTURES = {
    f"shop-{size}-{scheme}": (SHOP, SHOP_SIZES[size]) for size in SHOP_SIZES for scheme in ("light", "dark")
}
PICTURES_OF = {"service": SERVICE_PICTURES, "shop": SHOP_PICTURES}


def main(url: str, kind: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (path, (width, height)) in PICTURES_OF[kind].items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if name.endswith("dark") else "light",
            )
            page.goto(url + path)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").save(FOLDER / f"{name}.webp", quality=75, method=6)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
