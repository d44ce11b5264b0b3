"""Many calls of one function, each with random numbers of its own: bootstraps, simulation studies, cross-validation."""
