"""Actions, costs, the event engine and its timelines; published orders of work, an optimiser, bounds and proofs."""
