"""The environments that come with jaxrl; each imports `jaxrl.core` alone and is found by the name it is announced by."""
