"""The page to plan with: a small server that hands every computation to child processes, and never computes itself."""
