"""Counts of requests as text for Prometheus (``text/plain; version=0.0.4``)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper limits of the histogram of durations, in seconds."""


class Metrics:
    """Counts since the start of the server."""

    def __init__(self) -> None:
        self.files = 0
        self._statuses = Counter[tuple[str, int]]()
        self._seconds = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            path: path of the route, one of few.
            status: HTTP status.
            seconds: from the headers of the request to the answer.
        """
        self._statuses[path, status] += 1
        if path == "/predict":
            self._seconds += seconds
            self._buckets[bisect_left(BUCKETS, seconds)] += 1

    def text(self, pending: int, load_seconds: float) -> str:
        """Return all counts.

        Args:
            pending: number of requests that wait or are predicted.
            load_seconds: time that loading the model took.
        """
        lines = [
            *("# HELP opabinia_requests_total Answers by path and status.", "# TYPE opabinia_requests_total counter"),
            *(
                f'opabinia_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._statuses.items())
            ),
            *(
                "# HELP opabinia_files_total Images or videos that were predicted.",
                "# TYPE opabinia_files_total counter",
            ),
            f"opabinia_files_total {self.files}",
            "# HELP opabinia_requests_pending Requests with files that wait or are predicted.",
            *("# TYPE opabinia_requests_pending gauge", f"opabinia_requests_pending {pending}"),
            "# HELP opabinia_model_load_seconds Time to load the present model, and to embed its gallery.",
            *("# TYPE opabinia_model_load_seconds gauge", f"opabinia_model_load_seconds {load_seconds:.3f}"),
            "# HELP opabinia_predict_seconds Time to the answer of POST /predict, with the upload and the queue.",
            "# TYPE opabinia_predict_seconds histogram",
        ]
        total = 0
        for limit, count in zip([*map(str, BUCKETS), "+Inf"], self._buckets, strict=True):
            total += count
            lines.append(f'opabinia_predict_seconds_bucket{{le="{limit}"}} {total}')
        lines += [f"opabinia_predict_seconds_sum {self._seconds:.6f}", f"opabinia_predict_seconds_count {total}"]
        return "\n".join(lines) + "\n"


def tracking_text(frames: int, streams: int, latency: Mapping[str, float]) -> str:
    """Return the counts of a server that tracks.

    Args:
        frames: number of tracked frames.
        streams: number of open streams.
        latency: seconds of these frames by stage, see :class:`opabinia.inference.tracking.pipeline.Latency`.
    """
    lines = [
        *("# HELP opabinia_tracked_frames_total Frames of streams.", "# TYPE opabinia_tracked_frames_total counter"),
        f"opabinia_tracked_frames_total {frames}",
        *("# HELP opabinia_streams Open streams.", "# TYPE opabinia_streams gauge", f"opabinia_streams {streams}"),
        "# HELP opabinia_track_seconds_total Time of these frames by stage.",
        "# TYPE opabinia_track_seconds_total counter",
        *(f'opabinia_track_seconds_total{{stage="{name}"}} {seconds:.6f}' for name, seconds in latency.items()),
    ]
    return "\n".join(lines) + "\n"
