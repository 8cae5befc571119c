"""Plan files: read, written and compared; what is written is checked by the types that the format is declared in.

In: a `Plan`, or a JSON file of one, which may come from anyone.
Out: the file, the plan, a table for people, and the `difference` between two plans, by what each change costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.plans.plan_file import plan_data, plan_of, read_plan, write_plan
    from alpa_dejavu.plans.table import plan_table

__all__ = ["plan_data", "plan_of", "plan_table", "read_plan", "write_plan"]

__getattr__, __dir__ = loaded_when_used(__name__, dict.fromkeys(__all__, "plan_file") | {"plan_table": "table"})
