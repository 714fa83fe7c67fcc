"""TODO agent/jobs"""
