"""Mutation of a documentation: change one thing on one page, and see whether the checks of that page notice.

A check that lets a wrong number or a misspelt name pass is worth nothing there, and only a wrong number shows it.
`mutants` finds what can be changed, `bench` runs the checks on a changed page, and `python -m
reference_impl.doctesting.mutation` runs both over a folder of pages.
"""
