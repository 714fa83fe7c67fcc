"""TODO store/series"""
