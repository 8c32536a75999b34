"""Proximal policy optimisation (Schulman et al. 2017) as RLlib sets it up."""
