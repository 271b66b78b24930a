"""The best strategy of a whole space: bounds for all, simulations for the few that could win, and a proof."""
