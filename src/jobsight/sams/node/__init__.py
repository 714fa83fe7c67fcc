"""TODO sams/node"""
