"""Compiled programs and the devices that they run on."""
