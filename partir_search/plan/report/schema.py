"""JSON schema of `report_data`, printed by ``partir-search schema`` and published in the docs."""

from __future__ import annotations

from typing import Any

NUMBER, TEXT, TRUTH = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}


def _record(about: str = "", /, **fields: Any) -> dict[str, Any]:
    """Schema of an object with exactly the given fields."""
    found = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {"description": about, **found} if about else found


def _list(of: Any, about: str = "") -> dict[str, Any]:
    found = {"type": "array", "items": of}
    return {"description": about, **found} if about else found


def _map(of: Any, about: str) -> dict[str, Any]:
    return {"description": about, "type": "object", "additionalProperties": of}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_COST = {
    "seconds": NUMBER,
    "compute_seconds": NUMBER,
    "collective_seconds": NUMBER,
    "peak_bytes": NUMBER,
    "argument_bytes": NUMBER,
    "flops": NUMBER,
}

REPORT_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Report of a plan (partir-search --json); seconds and bytes of a step on one device",
    **_record(
        format={"const": 1},
        function=TEXT,
        fingerprint=TEXT,
        mesh=_map(COUNT, "devices along each axis, major to minor"),
        machine=TEXT,
        fits=TRUTH,
        memory_limit=_or_null(NUMBER),
        headlines=_list(TEXT, "warnings"),
        summary=_map(TEXT, "answers by question"),
        cost=_record(**_COST, sent_bytes=NUMBER),
        limits=_map(NUMBER, "seconds by limit: matrix units, memory traffic, links; most first"),
        bound=_or_null(
            _record(
                "no plan of the space takes fewer",
                seconds=NUMBER,
                gap=NUMBER,
                without=_list(TEXT, "decisions that no plan of the space has, of some plans"),
            )
        ),
        proven={"description": "every choice was enumerated", **TRUTH},
        confirmed=_or_null(
            _record(
                "choice among finalists by the compiler's figures",
                target={"description": "machine and topology", **TEXT},
                cycles={"description": "seconds are judged, not memory alone", **TRUTH},
                finalists=_list(
                    _record(
                        name=TEXT,
                        seconds={"description": "simulated", **NUMBER},
                        peak_bytes={"description": "simulated", **NUMBER},
                        judged_seconds=_or_null(NUMBER),
                        compiled_peak_bytes=_or_null(NUMBER),
                        fits=_or_null(TRUTH),
                        chosen=TRUTH,
                        note=TEXT,
                    ),
                    "the search's plan first, then best first by the simulator",
                ),
                why=TEXT,
                compile_seconds=NUMBER,
            )
        ),
        microbatches=COUNT,
        pipeline=_or_null(
            _record(
                "stages of layers",
                axis=TEXT,
                stages=COUNT,
                chunks=COUNT,
                schedule=TEXT,
                again={"description": "ops of a layer run again", **COUNT},
                split_backward=TRUTH,
                staged_state=TRUTH,
                spared={"description": "share of a layer's residuals spared by them", **NUMBER},
            )
        ),
        parallel_iterations={"description": "parts of independent iterations", **COUNT},
        scan_layers=TRUTH,
        recomputed_segments=COUNT,
        stored_results=COUNT,
        alternatives=_list(
            _record(
                name=TEXT,
                **_COST,
                fits=TRUTH,
                recomputed={"enum": ["none", "as the plan", "all"]},
                alike=_list(TEXT, "names of further strategies with the same figures"),
            ),
            "known strategies on the plan's form of the program",
        ),
        changes=_list(
            _record(
                what=TEXT,
                how=TEXT,
                plan={"description": "decisions behind the figures", **TEXT},
                seconds=NUMBER,
                relative={"description": "seconds per example over the plan's", **NUMBER},
                peak_bytes=NUMBER,
                fits=TRUTH,
            ),
            "changes by the user, most promising first",
        ),
        arguments=_list(
            _record(
                path=TEXT,
                type=TEXT,
                spec=_list(_list(TEXT), "mesh axes of each dim"),
                local_shape=_list(COUNT),
                local_bytes=NUMBER,
                role=TEXT,
            )
        ),
        kernels=_list(
            _record(
                kind=TEXT, source=TEXT, runs=NUMBER, seconds=NUMBER, flops=NUMBER, bytes=NUMBER
            ),
            "by primitive and source line, most seconds first",
        ),
        collectives=_list(
            _record(
                kind=TEXT,
                axes=_list(TEXT),
                source=TEXT,
                runs=COUNT,
                seconds=NUMBER,
                exposed={"description": "seconds that no compute hides", **NUMBER},
                bytes=NUMBER,
            ),
            "by kind, axes and source line, most exposed seconds first",
        ),
        memory=_map(NUMBER, "bytes at the peak by role or origin"),
        live=_list(
            _record(label=TEXT, count=COUNT, type=TEXT, part=TEXT, bytes=NUMBER, source=TEXT),
            "values at the peak besides arguments, largest first",
        ),
        versions=_map(TEXT, "of packages"),
    ),
}
