"""Operator profiles: measured or made tables of what each operator costs, in one form."""
