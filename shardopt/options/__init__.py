"""What planning can be told, said once: `plan_options.PlanOptions` is the table, and all else is
read from it.

    keyword argument   `keywords.py`, generated           shardopt.optimize(…, time_limit=5.0)
    command line       `shardopt.tools.option_flags`      shardopt plan … --time-limit 5
    option of a pass   `shardopt.passes.options`          shardopt-choose-shardings{time-limit=5}
    plan file          `shardopt.planfile.fields`       "options": {"time_limit": 5.0}
    documentation      `docs/reference/options.md`, generated

This package stands below all others: it imports none of them.
"""
