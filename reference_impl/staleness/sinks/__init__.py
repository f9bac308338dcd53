"""Where a step's log is written, one module a tool. A tool is imported when its sink is opened, and not before."""
