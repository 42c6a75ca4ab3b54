"""From raw Parquet to batches."""
