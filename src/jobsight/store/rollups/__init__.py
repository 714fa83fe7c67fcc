"""TODO store/rollups"""
