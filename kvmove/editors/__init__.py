"""Editor support: a language server and a highlighter, on top of the checker that the command line uses."""
