"""The screen of ``jobsight top``."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from jobsight.cli.top.readings import COLUMNS, RateTable, Row, select, summary
from jobsight.cli.top.sources import Source
from jobsight.errors import JobsightError
from jobsight.text import readable_text

#: Columns that `s` goes through.
SORTS: Final = ("cores", "cpu", "memory", "share", "read", "written", "gpus", "elapsed", "user")


class TopApp(App[None]):
    """A table of running jobs that refreshes itself."""

    TITLE = "jobsight top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; }
    #head { height: 1; padding: 0 1; text-style: bold; color: $accent; }
    #message { height: auto; padding: 0 1; color: $error; display: none; }
    DataTable { height: 1fr; }
    DataTable > .datatable--header { background: $panel; color: $foreground; }
    #details { height: auto; max-height: 14; padding: 0 1; border-top: solid $panel; }
    #filter { dock: bottom; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("p,space", "pause", "Pause"),
        Binding("d,enter", "details", "Details"),
        Binding("escape", "leave", "Back", show=False),
    ]

    def __init__(
        self,
        source: Source,
        *,
        interval: float,
        sort: str = "cores",
        text: str = "",
    ) -> None:
        super().__init__()
        self._source = source
        self._rates = RateTable()
        self._interval = interval
        self._sort, self._reverse, self._text = sort, False, text
        self._paused = False
        self._details = False
        self._rows: list[Row] = []
        self._message = ""

    def compose(self) -> ComposeResult:
        yield Static("", id="head")
        yield Static("", id="message")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        details = Static("", id="details")
        details.display = False
        yield details
        yield Input(placeholder="job, user or name", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.theme = "textual-dark"
        table = self.query_one(DataTable)
        for column in COLUMNS:
            table.add_column(Text(column.name, justify="right" if column.right else "left"),
                             key=column.name)  # fmt: skip
        table.focus()
        self.refresh_rows()
        self.set_interval(self._interval, self._tick)

    def _tick(self) -> None:
        if not self._paused:
            self.refresh_rows()

    @work(thread=True, exclusive=True)
    def refresh_rows(self) -> None:
        """Read in a thread: a slow source does not stop the keys."""
        try:
            rows, message = self._rates.update(self._source.read()), ""
        except JobsightError as error:
            rows, message = self._rows, str(error)
        self.call_from_thread(self._accept, rows, message)

    def _accept(self, rows: list[Row], message: str) -> None:
        self._rows, self._message = rows, message
        self._show()

    def _show(self) -> None:
        shown = select(self._rows, text=self._text, sort=self._sort, reverse=self._reverse)
        table = self.query_one(DataTable)
        chosen = self._chosen()
        table.clear()
        for row in shown:
            table.add_row(*_cells(row), key=row.reading.key)
        if chosen is not None and any(row.reading.key == chosen for row in shown):
            table.move_cursor(row=table.get_row_index(chosen))
        head = [f"{self._source.where}  {summary(shown)}", f"sorted by {self._sort}"]
        if self._text:
            head.append(f"filter {readable_text(self._text)!r}")
        if self._paused:
            head.append("paused")
        self.query_one("#head", Static).update(Text(readable_text(", ".join(head))))
        message = self.query_one("#message", Static)
        message.update(Text(readable_text(self._message)))
        message.display = bool(self._message)
        self._show_details()

    def _chosen(self) -> str | None:
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return None if key is None else str(key)

    def _show_details(self) -> None:
        panel = self.query_one("#details", Static)
        chosen = self._chosen()
        row = next((each for each in self._rows if each.reading.key == chosen), None)
        panel.display = self._details and row is not None
        if row is None:
            return
        reading = row.reading
        lines = [f"{reading.job}  {reading.name}  {reading.user}", *reading.details]
        panel.update(Text("\n".join(readable_text(line) for line in lines)))

    def on_data_table_row_highlighted(self) -> None:
        self._show_details()

    def on_data_table_row_selected(self) -> None:
        self.action_details()

    def action_sort(self) -> None:
        place = SORTS.index(self._sort) if self._sort in SORTS else -1
        self._sort = SORTS[(place + 1) % len(SORTS)]
        self._show()

    def action_reverse(self) -> None:
        self._reverse = not self._reverse
        self._show()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._show()

    def action_details(self) -> None:
        self._details = not self._details
        self._show_details()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._text = event.value
        self._show()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def action_leave(self) -> None:
        self._text = ""
        self.query_one("#filter", Input).value = ""
        self._leave_filter()
        self._show()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(DataTable).focus()


def _cells(row: Row) -> list[Text]:
    cells = []
    for column in COLUMNS:
        cell = column.cell(row)
        style = "dim italic" if cell.dim else ""
        cells.append(Text(cell.text, style=style, justify="right" if column.right else "left"))
    return cells
