"""Requests made from the OpenAPI description, right and wrong: none fails in an unexpected way."""

from pathlib import Path

from benchmarks.service_fuzz import fuzz
from mrfrec.service import create_app

from servers import save_shop, serving


def test_no_request_is_answered_with_a_server_error(tmp_path: Path) -> None:
    shop = save_shop(tmp_path / "shop.mrf")
    with serving(create_app(shop)) as url:
        statuses = fuzz(url, ["milk", "tea", "beer", 3], 300, (str(tmp_path),))
    assert sum(statuses.values()) >= 300
    # Right ones are among them, and wrong ones of several kinds.
    assert min(statuses[status] for status in (200, 400, 404, 405, 415, 422)) >= 1
