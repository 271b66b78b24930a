"""The page that shows results: the same modules behind the server and in one file that needs nothing else."""

from shardwise.report.page.build import asset_names, asset_text, page_of, timeline_page

__all__ = ["asset_names", "asset_text", "page_of", "timeline_page"]
