"""What runs show: pooled seeds, paired differences, tables, pictures, pages."""
