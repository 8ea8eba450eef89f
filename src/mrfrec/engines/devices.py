"""Names of devices: which there are, and which one a name stands for."""

import warnings

from mrfrec.errors import MissingLibraryError, ParameterError


def check_device(device: str) -> None:
    """Raise if PyTorch or the device is missing."""
    if device != "cpu":
        chosen_device(device)


def chosen_device(name: str) -> str:
    """Return the PyTorch device for a name, "cpu" for "auto" without a GPU; refuse one that is missing."""
    try:
        import torch
    except ImportError:
        if name in ("auto", "cpu"):
            return "cpu"
        raise MissingLibraryError(f'device="{name}" needs PyTorch: pip install "mrfrec[torch]".') from None
    if name == "cpu":
        return name
    with warnings.catch_warnings():  # PyTorch warns of old drivers
        warnings.simplefilter("ignore")
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if found else "cpu"
    if (torch.device(name).index or 0) >= found:
        reason = "This PyTorch is built without CUDA." if torch.version.cuda is None else f"It finds {found}."
        advice = f'{reason} Use "cpu", or "auto" to use a GPU if there is one.'
        raise ParameterError("device", "a device that PyTorch finds", name, advice)
    return name


def devices() -> list[tuple[str, str, int, int]]:
    """Return name, model, free and total bytes of each GPU that PyTorch finds."""
    try:
        import torch
    except ImportError:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    numbers = range(count)
    return [(f"cuda:{i}", torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)) for i in numbers]
