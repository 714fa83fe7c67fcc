"""TODO agent/processes"""
