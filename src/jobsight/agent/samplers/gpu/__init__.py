"""TODO agent/samplers/gpu"""
