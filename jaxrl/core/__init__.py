"""What an environment is: spaces, the contract, the registry, and the check of the contract."""
