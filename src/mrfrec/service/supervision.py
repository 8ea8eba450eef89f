"""Tell systemd that the service is ready, that its event loop turns, and that it stops: sd_notify(3).

systemd names its socket and the time that it waits in the environment; without it nothing is sent.
"""

import asyncio
import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state, such as READY=1, in one datagram."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending, suppress(OSError):
            sending.setblocking(False)
            sending.sendto(state.encode(), f"\0{name[1:]}" if name.startswith("@") else name)


def keep_notifying(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop send WATCHDOG=1, twice in the time after which systemd takes it for stuck."""
    seconds = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6

    def send() -> None:
        notify("WATCHDOG=1")
        loop.call_later(seconds, send)

    if seconds:
        send()
