"""The command line of StateFork."""
