"""TODO store/schema"""
