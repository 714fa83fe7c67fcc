"""TODO store/write"""
