from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from demo.digits import joined, rows, splits
from demo.filler import nearest
from demo.sweep import KernelClassifier
from tests import needs
from tests.unit.demo.conftest import Finish

GRID = [
    {"C": 0.1, "GAMMA": 0.1, "SCALE": "root"},
    {"C": 10, "GAMMA": 1, "SCALE": "standard"},
    {"C": 100, "GAMMA": 1, "SCALE": "unit"},
]


def test_the_digits_are_those_of_scikit_learn() -> None:
    digits = needs.module("sklearn.datasets", extra="demo").load_digits()
    table = np.frombuffer(b"".join(rows()), dtype=np.uint8).reshape(-1, 65)
    assert np.array_equal(table[:, :64], digits.data)
    assert np.array_equal(table[:, 64], digits.target)


def test_the_splits_are_disjoint_and_complete() -> None:
    parts = splits()
    assert [len(part.digits) for part in parts] == [1197, 300, 300]
    whole = joined(joined(parts[0], parts[1]), parts[2])
    seen = sorted((16 * whole.pixels).astype(np.uint8).tolist())
    assert seen == sorted(list(row[:64]) for row in rows())


@pytest.mark.parametrize("scale", ["unit", "root", "standard"])
def test_the_classifier_agrees_with_scikit_learn(scale: str) -> None:
    kernel_ridge = needs.module("sklearn.kernel_ridge", extra="demo").KernelRidge
    train, validation, _ = splits()
    mean, deviation = train.pixels.mean(axis=0), train.pixels.std(axis=0)
    deviation[deviation == 0] = 1.0
    scaled = {
        "unit": (train.pixels, validation.pixels),
        "root": (np.sqrt(train.pixels), np.sqrt(validation.pixels)),
        "standard": ((train.pixels - mean) / deviation, (validation.pixels - mean) / deviation),
    }
    learnt, asked = scaled[scale]
    reference = kernel_ridge(alpha=1 / 10, kernel="rbf", gamma=0.5 / (64 * learnt.var()))
    reference.fit(learnt, 2.0 * np.eye(10)[train.digits] - 1.0)
    expected = float((reference.predict(asked).argmax(axis=1) == validation.digits).mean())
    assert KernelClassifier(train, c=10, gamma=0.5, scale=scale).accuracy(validation) == expected


def test_a_sweep_ends_with_an_honest_best_point(finish: Finish, tmp_path: Path) -> None:
    for index, point in enumerate(GRID):
        ended = finish("sweep", CORRAL_ARRAY_INDEX=index, CORRAL_OUTPUT_DIR=tmp_path, **point)
        assert ended.returncode == 0, ended.stderr
    results = [json.loads((tmp_path / f"result-{index}.json").read_text()) for index in range(len(GRID))]
    assert [(result["C"], result["GAMMA"], result["SCALE"]) for result in results] == [
        (0.1, 0.1, "root"),
        (10, 1, "standard"),
        (100, 1, "unit"),
    ]
    assert all("accuracy" not in result for result in results)
    ended = finish("best", POINTS=len(GRID), INPUT_DIR=tmp_path, CORRAL_OUTPUT_DIR=tmp_path)
    assert ended.returncode == 0, ended.stderr
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["validation_accuracy"] == max(result["validation_accuracy"] for result in results)
    train, validation, held_out = splits()
    model = KernelClassifier(joined(train, validation), c=best["C"], gamma=best["GAMMA"], scale=best["SCALE"])
    assert best["accuracy"] == model.accuracy(held_out) >= 0.97


@pytest.mark.parametrize("content", [None, "{", "[]", '{"index": 1}'])
def test_an_incomplete_sweep_has_no_best_point(finish: Finish, tmp_path: Path, content: str | None) -> None:
    good = {"index": 0, "C": 1.0, "GAMMA": 1.0, "SCALE": "unit", "validation_accuracy": 0.9}
    (tmp_path / "result-0.json").write_text(json.dumps(good))
    if content is not None:
        (tmp_path / "result-1.json").write_text(content)
    ended = finish("best", POINTS=2, CORRAL_OUTPUT_DIR=tmp_path)
    assert ended.returncode == 1
    expected = "best: point 1 of 2 has no result" if content is None else "best: "
    assert ended.stderr.startswith(expected)
    assert "1" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "best.json").exists()


def test_the_filler_counts_right_neighbours(finish: Finish) -> None:
    table = np.frombuffer(b"".join(rows()), dtype=np.uint8).reshape(-1, 65).astype(int)
    fold = np.arange(len(table)) % 10 == 3
    asked, known = table[fold][:25], table[~fold]
    distances = ((asked[:, None, :64] - known[None, :, :64]) ** 2).sum(axis=2)
    right = int((known[distances.argmin(axis=1), 64] == asked[:, 64]).sum())
    ended = finish("filler", QUERIES=25, FOLDS=10, CORRAL_ARRAY_INDEX=13)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == f"fold 3 of 10: {right} of 25 right"


def test_the_nearest_neighbour_by_hand() -> None:
    low, high = bytes([0] * 64 + [3]), bytes([16] * 64 + [8])
    assert nearest(bytes([7] * 64 + [0]), [low, high]) == 3
    assert nearest(bytes([9] * 64 + [0]), [low, high]) == 8
