"""TODO agent/launch"""
