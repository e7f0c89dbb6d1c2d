"""One page for each code of a finding, as `kvmove explain` shows it. Data: `kvmove.kvpol.pages` reads it."""
