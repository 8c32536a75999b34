"""The environments that come with jaxrl; each imports `jaxrl.core` alone and is found by its announced name."""
