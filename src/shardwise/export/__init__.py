"""A plan in the words of a training framework; decides nothing."""
