"""Input records: planned as shards, read in blocks, decoded, encoded, written."""
