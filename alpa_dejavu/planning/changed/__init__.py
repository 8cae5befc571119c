"""A plan that runs, and hosts that are lost, slow, new or mispredicted, come in; the plan to go on by goes out."""
