"""Networks made for one environment each, which its tuned settings name."""
