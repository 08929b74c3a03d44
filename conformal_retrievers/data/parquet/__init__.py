"""Judged and scored queries in Parquet files."""

from conformal_retrievers.data.parquet.files import iter_parquet, read_parquet, write_parquet

__all__ = ["iter_parquet", "read_parquet", "write_parquet"]
