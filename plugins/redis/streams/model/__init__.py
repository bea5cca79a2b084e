"""The words of streams: events, records, keys and policies."""
