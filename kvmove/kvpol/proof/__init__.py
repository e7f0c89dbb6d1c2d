"""What can be proved of a policy for all inputs within the schema: needs the extra `prove` (z3)."""
