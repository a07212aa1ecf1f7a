"""Where a simulated fleet's requests come from: recorded traces, generators, published ladders.

Readers get lines of text, never a path; randomness is a seed. So equal input is equal output.
"""
