"""Ways to make training itself better, which may ask the planner.

In: a train step and ways to start it, or gradients of replicas.
Out: `initialization`: the start that promises most, trained on; `robust`: one gradient that survives wrong ones. What
needs Alpa is passed in from `alpa`.
"""
