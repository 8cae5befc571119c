"""Files, JSON, threads, processes and compiled loops: nothing here knows of planning."""
