"""Editor support: a language server and a highlighter, on top of the checker that the command line uses.

`server` speaks the protocol (extra `lsp`) and asks the others: `document` is one open policy, as the language's own
passes see it; `diagnostics`, `hover`, `completion`, `names`, `symbols` and `formatting` answer from it. `positions`
turns places in a text into the protocol's. `pygments_lexer` stands alone.
"""
