-- Outputs are stored as they are: compressing them, row by row of a flush, took most of the time that writing them takes.
ALTER TABLE {schema}.closures ALTER COLUMN outputs SET STORAGE EXTERNAL;
