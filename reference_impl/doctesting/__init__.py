"""Documentation that proves itself: every fence of a MyST page is run, compared or compiled, and an unknown one fails.

`fences` reads a page, `evaluators` says what each kind of fence must satisfy, `sybil_parser` hands both to Sybil, which
hands them to pytest. Nothing here knows the rest of this package, so that another project can use it as it is.
"""
