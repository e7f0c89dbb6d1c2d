"""Triton kernels that move pages. Import the module you need; this file stays empty on purpose (see docs/design.md)."""
