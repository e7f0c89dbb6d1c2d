"""What a load or store will take, from what a machine was measured to give. Never imports torch.

`kvmove calibrate` measures a machine and writes a `Profile`. A mover that is given it picks the path that is predicted
to be the quickest, and every result says what was predicted; an engine gets `load_time` for its policies from it.
"""

from kvmove.costs.model import CostModel, Sample, Terms, Work, fit
from kvmove.costs.profile import Profile

__all__ = ["CostModel", "Profile", "Sample", "Terms", "Work", "fit"]
