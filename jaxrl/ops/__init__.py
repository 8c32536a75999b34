"""Operations on arrays: advantages, losses, distributions, minibatches, running statistics."""
