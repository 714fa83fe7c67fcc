"""TODO agent/probes"""
