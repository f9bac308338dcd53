"""Build the site: `sphinx-build -W -n docs site`."""

project = "Tariff"
extensions = ["myst_parser", "reference_impl.doctesting.sphinx_roles"]
