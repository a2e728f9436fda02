"""What the pages share: scripts, styles, and how a page is put together."""

from jurygcn.web.page import Page, as_script_data, render

__all__ = ["Page", "as_script_data", "render"]
