"""Per-operator plans: stages, tp and dp per operator, recompute per operator, micro batch, from a profile.

question     the plan and the question
chain        the model as a list of operators, and where it repeats
priced       `Priced`, the full cost model: a plan as a setup, whose estimate is its cost
operators    `OperatorPricing`: its operators where the model is known
profiled     `Profiled`: its operators where only a profile is, and what their names say
below        its tables: additive, and never above an evaluation
tables       seconds and bytes of every operator under every layout of a stage
evaluate     time and memory of a plan by the pricing that the question carries; Aceso's is in `frameworks/aceso`, as is
             `ask`, which makes a question of what was asked
whole        strategies as plans, to begin with
bound        lower bounds of stage times by Lagrangian relaxation
stage        the best layouts and recompute of one stage, exact
grid         all cuts into stages under those bounds, in bands of operators
cut          the best cut into stages, given stage times
start        plans to begin with
search       the search: plans and a bound from the first second on, until they meet
trial        all plans with one micro batch, and the cuts that are still worth a look
stages       what is known of stages, and the ways to know more; `crossover` is the fastest, `breaks` ends its long runs
coarse       thousands of operators: a coarse cut, balanced
alleviate    iterative bottleneck alleviation alone, with a diary
solve        one door to both; `orders`: the plan found in other orders of its passes
answer       what an engine answers; `as_plan`: the answer as a typed plan
"""
