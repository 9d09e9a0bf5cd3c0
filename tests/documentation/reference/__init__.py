"""Generates the tables of the reference pages from the code: `make reference`.

A page has prose, and between two comments a region that is generated:

    <!-- generated: settings.gateway -->
    <!-- end of generated text -->

`REGIONS` maps the name of a region to the function that returns its Markdown.
"""
