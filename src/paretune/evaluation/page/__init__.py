"""What the report is made of besides its text: the interactive front, the sections that compare, style and script."""
