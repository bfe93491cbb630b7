"""MicroVMs. Start with :mod:`~statefork.backends.microvm.backend`."""
