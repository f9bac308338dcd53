"""The report of runs: one self-contained page for a browser, or text for a terminal.

`view` says what is shown of a run, `page` and `text` show it.
"""
