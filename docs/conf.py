"""The documentation site: `make docs` builds it from the Markdown of this folder, and fails for a broken link."""

import importlib.metadata

project = "Seatrial"
author = "The Seatrial developers"
release = importlib.metadata.version("seatrial")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"Seatrial {release}"
html_show_sphinx = False
html_copy_source = False
