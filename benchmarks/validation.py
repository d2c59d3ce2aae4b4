"""Errors on public measured rows against those of the committed record: did a change cost any?

    python benchmarks/validation.py check [--data ../shared/ground_truth]
    python benchmarks/validation.py record [--data ../shared/ground_truth] [--test]

``check`` predicts with the default fit, compares each group of rows with ``validation.json``, and
fails where a mean error is worse by more than a tenth. ``record`` writes that file anew. The rows
are NVIDIA's measured points (``aiconfigurator-core``) of the parts fit and validation, by engine
and GPU, and with ``--data`` those of trainval.csv and seed16.csv in that folder. Rows of the part
test are predicted once for each release of the default fit, by ``record --test``, which notes the
date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import physim
from physim.measured import silicon
from physim.validation.by_group import by_group

RECORD = Path(__file__).with_name("validation.json")
CAMPAIGNS = ("trainval.csv", "seed16.csv")
# Rows whose steps give a token each: of the others something is accepted that is not known well.
_PLAIN = "draft != draft"
METRICS = ("ttft_mean", "itl_mean", "e2e_mean")
# A group is worse from this share on, and by this many points at least.
_SHARE, _POINTS = 0.10, 0.3

Errors = dict[str, dict[str, float]]


def errors(tables: list[Path], where: str, names: list[str]) -> Errors:
    """Mean errors of groups of rows, percent, and how many rows they have."""
    found = physim.evaluate(tables, where=where)
    return {
        group_name(group, names): {
            "rows": group["rows"],
            "predicted_pct": round(group["predicted_pct"], 1),
            **{metric: round(group[metric]["mape"], 2) for metric in METRICS if group[metric]["n"]},
        }
        for group in by_group(found, names)
    }


def group_name(group: dict[str, Any], names: list[str]) -> str:
    """What a group is called in the record."""
    return ", ".join(group[name] for name in names)


def measured(folder: Path | None, test: bool) -> dict[str, Errors]:
    """Errors of all that is asked for, by the part that rows are of."""
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "silicon.csv"
        frame = silicon.read()
        frame.to_csv(path, index=False)
        parts = ("fit", "validation", *(["test"] if test else []))
        names = ["backend", "gpu"]
        found = {part: errors([path], f"part == '{part}' and {_PLAIN}", names) for part in parts}
        found |= {
            f"{part}, drafts": errors([path], f"part == '{part}' and draft == 'mtp'", names)
            for part in parts
        }
    if folder is not None:
        tables = [folder / name for name in CAMPAIGNS]
        steady = "stage >= 0 and not experiment.str.contains('reasoning')"
        found["campaigns"] = errors(tables, steady, ["backend", "gpu"])
    return found


def worse(known: dict[str, Errors], found: dict[str, Errors]) -> list[str]:
    """A line for each error that is worse than the record's, and for each group that it lacks."""
    lines = []
    for part, groups in found.items():
        for name, own in groups.items():
            before = known.get(part, {}).get(name)
            if before is None:
                lines.append(f"{part}: {name}: is not in the record")
                continue
            for metric in METRICS:
                was, now = before.get(metric), own.get(metric)
                if (
                    was is not None
                    and now is not None
                    and now > max(was * (1 + _SHARE), was + _POINTS)
                ):
                    lines.append(f"{part}: {name}: {metric} {was:.1f}% to {now:.1f}%")
            if own["predicted_pct"] < before["predicted_pct"] - 1:
                lines.append(f"{part}: {name}: fewer rows have a prediction")
    return lines


def main() -> None:
    """Checks or records."""
    parser = argparse.ArgumentParser(description="Errors on public rows against the record.")
    parser.add_argument("command", choices=("check", "record"))
    parser.add_argument("--data", type=Path, help="folder of trainval.csv and seed16.csv")
    parser.add_argument("--test", action="store_true", help="predict the test rows, for a release")
    asked = parser.parse_args()
    known = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    found = measured(asked.data, asked.test)
    for part, groups in found.items():
        for name, own in groups.items():
            said = ", ".join(f"{metric} {own[metric]:.1f}%" for metric in METRICS if metric in own)
            print(f"{part:10} {name:22} {own['rows']:5.0f} rows  {said}")
    if asked.command == "record":
        if asked.test:
            known["tested"] = datetime.date.today().isoformat()
        RECORD.write_text(json.dumps(known | found, indent=1) + "\n")
        return
    lines = worse(known, found)
    print("\n".join(lines) if lines else "no group is worse than the record")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
