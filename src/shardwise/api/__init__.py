"""The verbs: one function each, taking and returning the public types; the command line and the page call only these.

Names and files stand wherever a model, a cluster, a strategy or a plan is asked for: a catalog name, a file of ours, a
plan, or another tool's file. What a verb needs is imported when it is called, so that `import shardwise` costs nothing.
"""

from shardwise.api.arguments import flags_are_told, read
from shardwise.api.estimating import (
    advise,
    check,
    check_proof,
    detail,
    estimate,
    iteration,
    rank_allocations,
    rank_passes,
    timeline,
)
from shardwise.api.launching import launch, watch
from shardwise.api.looping import balance_loop
from shardwise.api.measuring import (
    calibrate,
    judge_calibration,
    probe_program,
    rehearsal_program,
    rehearse,
    store_calibration,
    validate,
    validate_advice,
)
from shardwise.api.operators import (
    aceso_lacks,
    measured_question,
    operator_question,
    operator_starts,
    operators_to_measure,
    plan_operators,
    write_aceso,
    write_profiles,
)
from shardwise.api.pipelines import (
    DESCRIBES,
    balance,
    balance_plan,
    compare_balance,
    design_rounds,
    diff_orders,
    dryrun,
    hold_orders,
    load_problem,
    patch_mindformers,
    quick_balance,
    read_problem,
    refuse_other_pipeline,
    schedule,
    simulate,
)
from shardwise.api.planning import (
    fixed_by,
    plan,
    question,
    read_stages,
    staged_runs,
    sweep,
    what_if,
    why,
    why_nothing,
)
from shardwise.api.reading import (
    ask,
    cluster_from,
    diff,
    export,
    load_cluster,
    load_model,
    load_runtime,
    load_strategy,
    model_from,
    plan_from,
    plan_of,
    plan_table,
    question_from,
    read_cluster,
    read_model,
    read_plan,
    renewed,
    targets,
    trace_module,
    write_export,
    write_plan,
)

__all__ = [
    "DESCRIBES", "aceso_lacks", "advise", "ask", "balance", "balance_loop", "balance_plan", "calibrate", "check",
    "check_proof", "cluster_from", "compare_balance", "design_rounds", "detail", "diff", "diff_orders", "dryrun",
    "estimate", "export", "fixed_by", "flags_are_told", "hold_orders", "iteration", "judge_calibration", "launch",
    "load_cluster", "load_model", "load_problem", "load_runtime", "load_strategy", "measured_question", "model_from",
    "operator_question", "operator_starts", "operators_to_measure", "patch_mindformers", "plan", "plan_from", "plan_of",
    "plan_operators", "plan_table", "probe_program", "question", "question_from", "quick_balance", "rank_allocations",
    "rank_passes", "read_cluster", "read_model", "read_plan", "read_problem", "read_stages",
    "refuse_other_pipeline", "rehearsal_program", "rehearse",
    "renewed", "schedule", "simulate", "staged_runs", "store_calibration", "sweep", "targets", "timeline",
    "trace_module", "validate", "validate_advice", "watch", "what_if", "why", "why_nothing", "write_aceso",
    "write_export", "write_plan", "write_profiles",
]  # fmt: skip

# Every verb reads its arguments in the same way; between themselves they have read them already.
globals().update({name: read(globals()[name]) for name in __all__ if callable(globals()[name])})
