"""SimuMax: its files, both ways, and its search call."""
