"""Ordered, partitioned streams of events, and the processors that work through them."""

from __future__ import annotations
