"""Kept tables belong to the model that is loaded."""

import hashlib
import os
from dataclasses import replace

import numpy as np
import pytest

from dpmd.models import cache, dptab, load, writers


@pytest.fixture
def model_file(tmp_path, monkeypatch, find_model):
    """A copy of a model file that may be changed, with an empty cache."""
    monkeypatch.setattr("dpmd.models.cache.user_cache_path", lambda name: tmp_path / name)
    path = tmp_path / "model.dp"
    path.write_bytes(find_model("water_md0.dp").read_bytes())
    return path


def other_weights(model):
    """The same model with other embedding networks."""

    def changed(embedding, _):
        first, *rest = embedding.network.layers
        layers = (replace(first, weight=1.1 * first.weight), *rest)
        return replace(embedding, network=replace(embedding.network, layers=layers))

    return replace(model, descriptor=model.descriptor.map_embeddings(changed))


def tables(loaded):
    return np.concatenate([e.table.coefficients.ravel() for e, _ in loaded.model.descriptor.unique_embeddings()])


def test_a_file_replaced_after_it_was_read_does_not_lend_its_digest(model_file, monkeypatch):
    """Else the old tables are kept as those of the new file."""
    old, new = load(model_file), model_file.with_name("new.dp")
    writers.write(other_weights(old), new)
    right = tables(cache.load_for_operators(new))
    for kept in (model_file.parent / "dpmd").iterdir():
        kept.unlink()
    digest = hashlib.sha256(model_file.read_bytes()).hexdigest()

    def load_and_replace(path):
        model = load(path)
        os.replace(new, model_file)
        return model

    with monkeypatch.context() as at_that_moment:
        at_that_moment.setattr(cache, "load", load_and_replace)
        first = cache.load_for_operators(model_file)
    assert first.digest == digest
    assert tables(first).shape != right.shape or np.abs(tables(first) - right).max() > 1e-3
    second = cache.load_for_operators(model_file)
    assert second.digest == hashlib.sha256(model_file.read_bytes()).hexdigest() != digest
    assert np.array_equal(tables(second), right)


@pytest.mark.parametrize("lie", ["digest", "parameters"])
def test_tables_of_another_model_are_made_again(model_file, lie):
    """Whatever the cache holds below the name of this model."""
    right = cache.load_for_operators(model_file)
    (kept,) = (model_file.parent / "dpmd").iterdir()
    exact = right.exact
    if lie == "digest":
        kept_model = replace(right.model, source=replace(exact.source, digest=64 * "0"))
    else:
        kept_model = cache.tabulate(other_weights(exact))
        assert kept_model.source.digest == exact.source.digest
    dptab.write(kept_model, kept)
    again = cache.load_for_operators(model_file)
    assert "made in" in again.description
    assert np.array_equal(tables(again), tables(right))
    assert "from the cache" in cache.load_for_operators(model_file).description


@pytest.mark.parametrize("name", ["water_md0.dp", "water_md0.pb", "water_md0.pth"])
def test_digest_is_that_of_the_bytes(find_model, name):
    path = find_model(name)
    assert load(path).source.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_ranks_that_read_different_files_are_told(find_model):
    """All of them, by one message that names the file and the rank."""
    from types import SimpleNamespace

    from dpmd.errors import InputError
    from dpmd.potential import check_same_models

    names = ("water_md0.dp", "water_md1.pb")
    one, two = (SimpleNamespace(loaded=cache.load_for_operators(find_model(name))) for name in names)

    def ranks(*theirs):
        digests = [[potential.loaded.digest for potential in each] for each in theirs]
        return SimpleNamespace(size=len(theirs), collect=lambda mine: digests, on_root=lambda function: function())

    check_same_models(ranks([one, two], [one, two], [one, two]), [one, two])
    with pytest.raises(InputError, match=r"water_md1.*rank 2 has read is not that of rank 0 \(1 of 3"):
        check_same_models(ranks([one, two], [one, two], [one, one]), [one, two])
