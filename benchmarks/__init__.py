"""Benchmarks: one `bench_<thing>` module per thing measured, run as `python -m benchmarks.bench_<thing>`."""
