"""Measure backends side by side: how long, how big, and what survives."""
