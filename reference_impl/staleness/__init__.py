"""How stale each generated token is: run-length epochs, the run folder's file, and the report made from it.

Plain Python and NumPy, so that any framework can depend on it; plotly and rich are loaded by the report alone, when
it is asked for one. Import from the modules: `epochs`, `runs`, `report`.
"""
