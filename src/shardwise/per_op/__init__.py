"""Per-operator plans: stages, tp and dp per operator, recompute per operator, micro batch, from a profile.

types        the plan and the question
chain        the model as a list of operators, and where it repeats
rules        what is known about a profiled operator: layouts, sharing, recompute
priced       the full cost model: a plan as a setup, whose estimate is its cost
operators    its operators where the model is known; `profiled`: where only a profile is
below        its tables: additive, and never above an evaluation
tables       seconds and bytes of every operator under every layout of a stage
evaluate     time and memory of a plan by the pricing that the question carries; Aceso's is in `frameworks/aceso`
whole        strategies as plans, to begin with
bound        lower bounds of stage times by Lagrangian relaxation
stage        the best layouts and recompute of one stage, exact
grid         all cuts into stages under those bounds, in bands of operators
pipeline     the best cut into stages, given stage times
balance      equal stages, balanced: plans to begin with
search       the exact engine: bounds first, stages refined until the plan is proven
deep         hundreds of layers: a coarse cut, balanced
alleviate    iterative bottleneck alleviation, as a second engine with a diary
"""
