"""Replays a trace on a simulated engine that really moves bytes, to see what a policy does before an engine does it.

Time is simulated, decisions see the bytes of a modelled LLM, and the pages that move are a scaled-down replica of
its cache; every loaded page is compared with what its block has to hold. `trace` reads requests, `synth` makes
them, `engine` runs them: `replay(policy, requests)` from `kvmove.replay.engine` does it all (it imports torch).
"""
