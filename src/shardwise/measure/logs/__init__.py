"""What training frameworks print while they train: one reader, its steps, what is steady, whose run it is."""
