"""The scheduler half of a step: what each hit does, within the step's byte budget, whatever the policy says.

`StepScheduler` asks a policy about every hit, puts the answer through the guard rails and keeps the one
ledger of the step. `HitPolicy` is what it asks: anything with that shape will do. `PolicySource` is what it follows.
"""

from kvmove.schedule.policy import HitPolicy, HitRule
from kvmove.schedule.scheduler import StepScheduler
from kvmove.schedule.shadow import ShadowStatistics
from kvmove.schedule.statistics import RuleCounts, Statistics
from kvmove.schedule.upcoming import PolicySource
from kvmove.schedule.why_not import RuleExplained

__all__ = [
    "HitPolicy",
    "HitRule",
    "PolicySource",
    "RuleCounts",
    "RuleExplained",
    "ShadowStatistics",
    "Statistics",
    "StepScheduler",
]
