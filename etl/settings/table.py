"""Where does the table lie, how is its store reached, and how are rows written?

The section `table` of a conf: where the rows go, and as what kind of files.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from etl.model.plans import FILE_BYTES, HELD_BYTES, ROW_GROUP_BYTES, Codec
from etl.settings.places import check_place, place_of
from etl.settings.policies import OnRowsRemoved, WriterName
from etl.settings.section import INT64, Section, one_or_several
from etl.settings.store import StoreSettings, TablePath


class TableSettings(Section):
    """Where the rows go."""

    store: StoreSettings = StoreSettings()
    name: str | None = Field(default=None, pattern=r"^[\w-]+(\.[\w-]+){1,2}$")
    """CATALOG.SCHEMA.TABLE or SCHEMA.TABLE, of Spark's catalogs, which tell the path; none is
    written beside it.
    """
    written_path: str | None = Field(default=None, min_length=1, alias="path")
    """None: the table is named, and nobody has asked yet where it is."""
    writer: WriterName = WriterName.SPARK
    """`auto`: by the tasks themselves where that can be (`decisions.writers`), else by Spark."""
    codec: Codec | None = None
    """None: zstd for files that tasks write, and what the session says for Spark's."""
    target_file_bytes: int = Field(default=FILE_BYTES, ge=2**20, le=INT64)
    """Of files that tasks write: one ends behind the row group that takes it there. And of those
    that small ones are put together in.
    """
    row_group_bytes: int = Field(default=ROW_GROUP_BYTES, ge=2**16, le=2**30)
    """Of such files: rows in memory that become one."""
    held_bytes: int = Field(default=HELD_BYTES, ge=2**16, le=2**32)
    """Rows of such files that a task has in memory, of all its files."""
    compact_at_small_files: int = Field(default=0, ge=0, le=INT64)
    """A run that leaves so many behind puts them together; 0: none does."""
    partition_by: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()
    """Columns of the table; `event_date` is built in: the UTC date of the record's timestamp."""
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL
    losses_path: str | None = Field(default=None, min_length=1)
    """The Delta table of what was let go under `on_data_loss: skip` or `on_moved: follow`;
    `<path>_losses` unless given.
    """

    @field_validator("partition_by")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [
            name for name in value if sum(name.lower() == other.lower() for other in value) > 1
        ]
        if twice:
            raise ValueError(f"names {twice[0]} more than once")
        return value

    @model_validator(mode="before")
    @classmethod
    def _path_is_looked_at(cls, given: Any) -> Any:
        """Also where nobody wrote one: then a name must be there."""
        return {"path": None, **given} if isinstance(given, dict) else given

    @field_validator("written_path")
    @classmethod
    def _one_of_two(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None and "name" in info.data and info.data["name"] is None:
            raise PydanticCustomError("missing", "Field required")
        if path is not None and info.data.get("name") is not None:
            raise ValueError(
                "is there beside table.name, by which Spark tells the path: leave one of the two out"
            )
        return path

    @field_validator("written_path", "losses_path")
    @classmethod
    def _is_a_place(cls, path: str | None, info: ValidationInfo) -> str | None:
        return (
            TablePath(check_place(path), info.data.get("store", StoreSettings())) if path else path
        )

    def placed(self, path: str | None, losses_path: str | None) -> TableSettings:
        """The same with other paths, which lie in the same store."""
        return self.model_copy(
            update={
                "written_path": TablePath(path, self.store) if path else None,
                "losses_path": TablePath(losses_path, self.store) if losses_path else None,
            }
        )

    @property
    def path(self) -> str:
        """Where the table is; it carries `store` along (`TablePath`), and so does `losses_path`.

        Raises LookupError for a named table before `run.named_table.placed` has found out: whoever
        asks for its path forgot that.
        """
        if self.written_path is None:
            raise LookupError(f"nobody has asked yet where the table {self.name} is")
        return self.written_path

    @property
    def is_placed(self) -> bool:
        """Whether it is known where the table is."""
        return self.written_path is not None

    @property
    def called(self) -> str:
        """As the conf names it: its name or its path."""
        return self.name or self.path

    @property
    def losses_at(self) -> str:
        """Where that table is."""
        return self.losses_path or TablePath(f"{self.path.rstrip('/')}_losses", self.store)

    @property
    def place(self) -> str:
        """Where the table is, the same however `path` is written."""
        return place_of(self.path)
