"""The benchmark tool: what the data plane reaches on this machine, beside a contiguous DMA in the same run.

`sections` holds what is measured, one module a section; `run` runs them; `results` writes and reads what came out;
`figures` draws it. Only the sections import torch, so that figures can be drawn anywhere.
"""
