"""Saved states: values as bytes, the files of each process, and what another number of processes makes of them."""
