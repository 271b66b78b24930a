"""Aceso: its profiles, its plans, its own formulas."""
