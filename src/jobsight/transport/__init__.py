"""TODO transport"""
