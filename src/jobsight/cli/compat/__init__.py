"""TODO cli/compat"""
