"""Importers: other people's tables -> records in run folders."""
