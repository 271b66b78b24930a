"""Text, pages and pictures of a result; decides nothing."""
