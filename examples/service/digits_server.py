"""A classifier of handwritten digits, trained at its start from what ships with scikit-learn.

pip install scikit-learn fastapi uvicorn
PORT=8000 python examples/service/digits_server.py
curl -s localhost:8000/predict -H 'Content-Type: application/json' -d '{"pixels": [0, 0, 5, ...]}'
"""

from __future__ import annotations

import os

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from corral.guard import AsgiGuard

PIXELS = 64

digits = load_digits()
classifier = LogisticRegression(max_iter=200).fit(digits.data / 16.0, digits.target)
app = FastAPI()
app.add_middleware(AsgiGuard)


class Image(BaseModel):
    """An 8 x 8 image, row by row, each pixel 0 to 16."""

    pixels: list[float]


@app.get("/health")
def health() -> dict[str, float]:
    """Tell that the model is trained, and how well."""
    return {"accuracy": float(classifier.score(digits.data / 16.0, digits.target))}


@app.post("/predict")
def predict(image: Image) -> dict[str, object]:
    """Return the digit, and how sure the model is."""
    if len(image.pixels) != PIXELS:
        raise HTTPException(422, f"an image has {PIXELS} pixels, not {len(image.pixels)}")
    (sure,) = classifier.predict_proba([[pixel / 16.0 for pixel in image.pixels]])
    return {"digit": int(sure.argmax()), "probability": float(sure.max())}


if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ["PORT"]), log_level="warning")  # noqa: S104 - the guard asks
