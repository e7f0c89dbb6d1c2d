"""The scheduler half of a step: what each hit does, within the step's byte budget, whatever the policy says.

`StepScheduler` asks a policy about every hit, puts the answer through the guard rails and keeps the one
ledger of the step. `HitPolicy` is what it asks: anything with that shape will do.
"""

from kvmove.schedule.policy import HitPolicy, HitRule
from kvmove.schedule.scheduler import StepScheduler
from kvmove.schedule.shadow import ShadowStatistics
from kvmove.schedule.statistics import Statistics
from kvmove.schedule.why_not import RuleExplained

__all__ = ["HitPolicy", "HitRule", "RuleExplained", "ShadowStatistics", "Statistics", "StepScheduler"]
