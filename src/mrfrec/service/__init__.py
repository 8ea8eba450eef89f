"""Serve models over HTTP: an API and a page.

from mrfrec import service

app = service.create_app("shop.mrf")  # for any ASGI server
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mrfrec.service.settings import ServiceSettings

if TYPE_CHECKING:
    from mrfrec.service.app import create_app
    from mrfrec.service.server import serve

__all__ = ["ServiceSettings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name in ("create_app", "serve"):  # need FastAPI, which the settings do not
        return getattr(import_module(f"mrfrec.service.{'app' if name == 'create_app' else 'server'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
