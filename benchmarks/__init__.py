"""One command for each claim; `python -m benchmarks.NAME --help` says what it measures."""
