"""Text to token shards, and tokens back to text."""
