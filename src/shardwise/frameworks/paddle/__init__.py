"""PaddleNLP: its trainer arguments."""
