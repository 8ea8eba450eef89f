"""Take the screenshots of the pages: `python tools/screenshots.py http://127.0.0.1:8000`.

The service must serve the Debian data: `mrfrec demo -o debian.mrf && mrfrec serve debian.mrf --user-page`.
Chromium must be installed.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
ITEM = "/item?item=python3-numpy"
HISTORY = "/history?item=python3-numpy&item=python3-matplotlib&novelty=0.5"
DESKTOP, PHONE = (1200, 1110), (390, 1080)
# The address of each picture, and its size.
PICTURES = {
    "history-desktop-light": (HISTORY, DESKTOP),
    "history-desktop-dark": (HISTORY, DESKTOP),
    "history-phone-dark": (HISTORY, PHONE),
    "item-desktop-light": (ITEM, DESKTOP),
    "user-desktop-light": ("/user?id=3depict", DESKTOP),
}


def main(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (path, (width, height)) in PICTURES.items():
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
