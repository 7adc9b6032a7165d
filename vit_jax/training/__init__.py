"""Training as pure functions: state, losses, mixing, optimizers, the step."""
