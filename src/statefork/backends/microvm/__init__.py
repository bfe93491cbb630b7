"""MicroVMs. :mod:`~statefork.backends.microvm.backend` is the way in."""
