"""Per-operator plans: stages, tp and dp per operator, recompute per operator, micro batch, from a profile.

types        the plan and the question
chain        the model as a list of operators, and where it repeats
rules        what is known about an operator by its name: layouts, sharing, recompute
flavour      the two cost models as data: compatible (Aceso's) and full (ours)
tables       seconds and bytes of every operator under every layout of a stage
evaluate     time and memory of a plan, to the part
bound        lower bounds of stage times by Lagrangian relaxation
stage        the best layouts and recompute of one stage, exact
pipeline     the best cut into stages, given stage times
search       the exact engine: bounds first, stages refined until the plan is proven
alleviate    iterative bottleneck alleviation, as a second engine with a diary
"""
