"""kvmove inside engines. Importing this package, or one of its packages, needs no engine; using one does."""
