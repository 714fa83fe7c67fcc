"""TODO cli/software"""
