"""Types of the extension module, one section per room."""

__version__: str

# ---- codec ----

# ---- log ----

# ---- server ----

# ---- client ----

# ---- columns ----
