"""Tables of step times for serving simulators.

`load` and `Table` need NumPy alone (and pandas for tables in CSV or Parquet): no JAX.
"""

from physim.tables.files import load
from physim.tables.table import AXES, Table

__all__ = ["AXES", "Table", "load"]
