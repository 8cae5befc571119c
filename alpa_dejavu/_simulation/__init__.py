"""The parts of `alpa_dejavu.simulate`, which is where its public names are."""
