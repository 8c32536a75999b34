"""Recorded episodes as data: what a policy would have earned, without playing it."""
