"""What can be seen of KVM without starting a machine; :mod:`statefork.backends.microvm.accelerator` tries it."""

import os
from pathlib import Path

__all__ = ["device_problem", "module_problem"]

DEVICE = Path("/dev/kvm")


def device_problem() -> str | None:
    """Why KVM cannot even be tried; None if it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"this host has no {DEVICE}"
    except OSError as error:
        return f"{DEVICE} cannot be opened: {error.strerror}"
    return None


def module_problem() -> str | None:
    """A KVM that is neither Intel's nor AMD's runs only kernels that were made for it."""
    if any(Path(f"/sys/module/{name}").is_dir() for name in ("kvm_intel", "kvm_amd")):
        return None
    return "KVM here is neither Intel's nor AMD's, and boots no stock kernel"
