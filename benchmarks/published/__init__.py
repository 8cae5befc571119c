"""Published measurements of training on GPUs, and how near the planner's models are to them."""
