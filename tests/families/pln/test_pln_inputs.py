"""Counts, covariates and offsets of PLN-PCA: every kind of table, every message, and size factors against plain loops."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy

from margaux.families.pln import disk
from margaux.families.pln.table import design, like, read


def table(n=12, p=7, seed=0, mean=3.0):
    """Counts without empty rows and columns, with some zeros."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(1.0, mean, (n, p)))
    y[:, 0] += 1
    y[0] += 1
    return y


def frame(y):
    return pd.DataFrame(y, index=[f"s{i}" for i in range(len(y))], columns=[f"g{j}" for j in range(y.shape[1])])


def plain(counts):
    return counts.values.toarray() if scipy.sparse.issparse(counts.values) else np.asarray(counts.values)


def memory_map(y, folder):
    out = np.memmap(folder / "counts.bin", dtype=np.int32, mode="w+", shape=y.shape)
    out[:] = y
    return out


KINDS = {
    "list": lambda y, _: y.tolist(),
    "int8": lambda y, _: y.astype(np.int8),
    "uint64": lambda y, _: y.astype(np.uint64),
    "half": lambda y, _: y.astype(np.float16),
    "float": lambda y, _: y.astype(np.float32),
    "objects": lambda y, _: y.astype(object),
    "fortran": lambda y, _: np.asfortranarray(y),
    "masked": lambda y, _: np.ma.masked_array(y, np.zeros(y.shape, bool)),
    "memmap": memory_map,
    "frame": lambda y, _: frame(y),
    "frame of integers and floats": lambda y, _: frame(y).astype({"g1": float}),
    "frame of nullable": lambda y, _: frame(y).astype("Int64"),
    "sparse frame": lambda y, _: pd.DataFrame.sparse.from_spmatrix(scipy.sparse.csr_matrix(y)),
    "csr": lambda y, _: scipy.sparse.csr_array(y),
    "csc": lambda y, _: scipy.sparse.csc_matrix(y.astype(float)),
    "coo": lambda y, _: scipy.sparse.coo_array(y),
    "lil": lambda y, _: scipy.sparse.lil_matrix(y),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_is_read_alike(kind, tmp_path):
    y = table()
    given = KINDS[kind](y, tmp_path)
    got = read(given, offsets="TSS")
    np.testing.assert_array_equal(plain(got.counts), y)
    assert scipy.sparse.issparse(got.counts.values) == ("sparse" in kind or scipy.sparse.issparse(given))
    np.testing.assert_allclose(got.offset[:, 0], np.log(y.sum(1)) - np.log(y.sum(1)).mean(), rtol=1e-12)
    assert got.x.tolist() == [[1.0]] * 12 and got.covariate_names == ["Intercept"]
    assert list(got.features[:2]) == (["g0", "g1"] if "frame" in kind and "sparse" not in kind else ["y0", "y1"])
    new = like(got, KINDS[kind](y[:3], tmp_path))
    np.testing.assert_allclose(new.offset, got.offset[:3], rtol=1e-12)


def test_truth_values_are_counts():
    assert plain(read(np.eye(4, dtype=bool)).counts).sum() == 4
    assert plain(read(pd.DataFrame({"a": [True, False, True], "b": [2, 3, 4]})).counts).tolist() == [[1, 2], [0, 3], [1, 4]]


def test_sparse_tables_are_made_canonical_and_left_as_given():
    given = scipy.sparse.csr_array((np.array([1, 2, 0, 4, 3]), np.array([1, 1, 0, 1, 0]), np.array([0, 3, 4, 5])), shape=(3, 2))
    got = read(given)
    assert plain(got.counts).tolist() == [[0, 3], [0, 4], [3, 0]] and got.counts.values.nnz == 3
    assert given.data.tolist() == [1, 2, 0, 4, 3]


def test_a_canonical_table_is_not_copied():
    given = scipy.sparse.csr_array(table())
    assert np.shares_memory(read(given).counts.values.data, given.data)
    dense = table()
    assert np.shares_memory(read(dense).counts.values, dense)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_anndata(tmp_path):
    anndata = pytest.importorskip("anndata")
    y = table()
    # Files hold texts as objects.
    kinds = pd.Categorical(list("abc") * 4, categories=pd.Index(list("abc"), dtype=object))
    obs = pd.DataFrame({"site": kinds}, index=pd.Index([f"s{i}" for i in range(12)], dtype=object))
    var = pd.DataFrame(index=pd.Index([f"g{j}" for j in range(7)], dtype=object))
    made = anndata.AnnData(scipy.sparse.csr_matrix(y.astype(np.float32)), obs, var)
    made.write_h5ad(tmp_path / "a.h5ad")
    for one in (made, anndata.read_h5ad(tmp_path / "a.h5ad", backed="r"), made[:, ::-1][:, ::-1]):
        got = read(one, formula="~ site")
        np.testing.assert_array_equal(plain(got.counts), y)
        assert scipy.sparse.issparse(got.counts.values)
        assert got.covariate_names == ["Intercept", "site[T.b]", "site[T.c]"]
        assert got.features[1] == "g1" and got.units[2] == "s2"
        assert read(one).covariate_names == ["Intercept"]
        np.testing.assert_array_equal(like(got, made[:3]).x, got.x[:3])
    anndata.AnnData(y.astype(np.float32), obs, var).write_h5ad(tmp_path / "dense.h5ad")
    np.testing.assert_array_equal(plain(read(anndata.read_h5ad(tmp_path / "dense.h5ad", backed="r")).counts), y)
    made.X = None
    with pytest.raises(ValueError, match="the AnnData has no .X"):
        read(made)


def with_many_zeros(n, p):
    """A table with one or two counts in every row, and some in every column."""
    y = np.zeros((n, p), np.int32)
    y[:, 0] = 1
    y[np.arange(n), np.arange(n) % p] += 2
    return y


def on_disk(kind, y, folder):
    """A table in a file."""
    if kind == "npy":
        np.save(folder / "y.npy", y)
        return np.load(folder / "y.npy", mmap_mode="r")
    if kind == "zarr":
        return pytest.importorskip("zarr").array(y, chunks=(5, 3), store=str(folder / "y.zarr"))
    file = pytest.importorskip("h5py").File(folder / "y.h5", "w")
    return file.create_dataset("y", data=y, chunks=(4, 7) if kind == "hdf5 in chunks" else None)


class Watched:
    """A stored table that counts the rows it is asked for at once."""

    def __init__(self, y, chunks):
        self.y, self.chunks, self.rows = y, chunks, []
        self.shape, self.dtype, self.ndim = y.shape, y.dtype, 2

    def __getitem__(self, span):
        self.rows.append(len(self.y[span]))
        return self.y[span]

    def __array__(self, dtype=None, copy=None):
        self.rows.append(len(self.y))
        return self.y


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["npy", "zarr", "hdf5", "hdf5 in chunks"])
@pytest.mark.parametrize("dtype", [np.int32, np.float16, ">u2"])
def test_tables_on_disk(kind, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "BLOCK", 30)
    for y, sparse in ((table().astype(dtype), False), (with_many_zeros(24, 16).astype(dtype), True)):
        folder = tmp_path / str(sparse)
        folder.mkdir()
        given = on_disk(kind, y, folder)
        got = read(given, offsets="total")
        assert scipy.sparse.issparse(got.counts.values) == sparse
        np.testing.assert_array_equal(plain(got.counts), y)
        if kind == "npy" and not sparse and dtype != np.float16:
            assert np.shares_memory(got.counts.values, given)


def test_a_stored_table_with_zeros_is_read_a_few_chunks_at_a_time(monkeypatch):
    monkeypatch.setattr(disk, "BLOCK", 100)
    y = with_many_zeros(40, 10)
    given = Watched(y, (4, 10))
    np.testing.assert_array_equal(plain(read(given).counts), y)
    assert given.rows == [8] * 5


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["array", "none", "total"])
def test_empty_units_are_data_unless_their_offset_is_computed(sparse, kind):
    y = table()
    y[[3, 7]], y[:, [1]] = 0, 0
    given = scipy.sparse.csc_array(y) if sparse else frame(y)
    feature, units = ("(y1)", "(3, 7)") if sparse else ("(g1)", "(s3, s7)")
    offsets = np.tile(np.arange(7.0), (12, 1)) + np.arange(12)[:, None] if kind == "array" else kind
    with pytest.warns(UserWarning, match=re.escape(f"left out: 1 feature without counts {feature}")) as seen:
        got = read(given, covariates=np.arange(12.0), offsets=offsets)
    assert len(seen) == 1
    told = f'2 units without counts {units}: offsets="total" computes none for them'
    assert (told in str(seen[0].message)) == (kind == "total")
    np.testing.assert_array_equal(np.flatnonzero(~got.kept_rows), [3, 7] if kind == "total" else [])
    np.testing.assert_array_equal(np.flatnonzero(~got.kept_columns), [1])
    np.testing.assert_array_equal(plain(got.counts), y[got.kept_rows][:, got.kept_columns])
    np.testing.assert_array_equal(got.x[:, 1], np.arange(12)[got.kept_rows])
    if kind == "array":
        np.testing.assert_array_equal(got.offset, offsets[:, got.kept_columns])
    assert len(got.features) == got.counts.p == 6 and len(got.units) == got.counts.n == (10 if kind == "total" else 12)


def test_a_level_that_only_units_left_out_have_is_named():
    y = table()
    y[5] = 0
    with pytest.warns(UserWarning, match="1 unit "), pytest.raises(ValueError, match='"site" is a in every unit'):
        read(y, pd.DataFrame({"site": np.where(np.arange(12) == 5, "b", "a")}), offsets="TSS")


# Covariates.


def test_covariates_are_coded():
    y = frame(table())
    frames = pd.DataFrame(
        {
            "site": list("abc") * 4,
            "depth": np.arange(12.0),
            "wet": [True, False] * 6,
            "square": pd.array([i * i for i in range(12)], "Int64"),
        },
        index=y.index,
    )
    frames["site"] = frames["site"].astype(pd.CategoricalDtype(["c", "b", "a", "none"]))
    got = read(y, frames)
    assert got.covariate_names == ["Intercept", "site[T.b]", "site[T.a]", "depth", "wet", "square"]
    expected = np.column_stack([np.ones(12), frames.site == "b", frames.site == "a", frames.depth, frames.wet, frames.square])
    np.testing.assert_array_equal(got.x, expected.astype(float))
    by = read(y, frames, "~ 0 + site + np.log(depth + 1)")
    assert by.covariate_names == ["site[c]", "site[b]", "site[a]", "np.log(depth + 1)"]
    assert read(y, frames, "site").x.shape == (12, 3) and read(y, frames, "~ 1").x.shape == (12, 1)
    np.testing.assert_array_equal(read(y, formula="~ 1").x, np.ones((12, 1)))
    np.testing.assert_array_equal(read(y, frames.depth).x[:, 1], frames.depth)
    np.testing.assert_array_equal(read(y, np.arange(12)).x[:, 1], frames.depth)
    idle = frames.assign(date=pd.Timestamp("2020-01-01"), hole=np.nan)
    np.testing.assert_array_equal(read(y, idle, "~ depth").x[:, 1], frames.depth)


def test_transformations_keep_their_state():
    y = table()
    fit = read(y, SITES, "~ center(depth) + C(site, contr.sum)")
    np.testing.assert_allclose(fit.x[:, 1], np.arange(12) - 5.5)
    np.testing.assert_allclose(like(fit, y[3:5], SITES[3:5]).x, fit.x[3:5])


def test_any_name_of_a_covariate_will_do():
    covariates = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 4))).set_axis([0, "a:b", "1", "x`^2 é"], axis=1)
    got = read(table(), covariates)
    assert got.covariate_names == ["Intercept", "x0", "a:b", "1", "x`^2 é"]
    np.testing.assert_array_equal(got.x[:, 1:], covariates)
    np.testing.assert_array_equal(design(got, covariates[:2]), got.x[:2])


SITES = pd.DataFrame({"site": list("abc") * 4, "depth": np.arange(12.0)})


def changed(column, row, value):
    return SITES.astype(object).assign(**{column: [value if i == row else v for i, v in enumerate(SITES[column])]})


@pytest.mark.parametrize(
    "covariates, formula, error, words",
    [
        (changed("depth", 3, None), None, ValueError, r'the covariate "depth" is missing at unit "3" \(1 such in all\)'),
        (changed("depth", 3, np.nan), "~ depth", ValueError, 'the covariate "depth" is missing at unit "3"'),
        (changed("site", 4, None), None, ValueError, 'the covariate "site" is missing at unit "4"'),
        (changed("site", 4, None), "~ site", ValueError, 'the covariate "site" is missing at unit "4"'),
        (changed("depth", 5, np.inf), None, ValueError, 'the covariate "depth" is inf at unit "5"'),
        (changed("depth", 5, "deep"), None, TypeError, "mixes numbers and text"),
        (SITES, "~ np.log(depth)", ValueError, r'"np.log\(depth\)" is -inf at unit "0"'),
        (SITES, "~ dept", ValueError, 'cannot build "~ dept" from covariates site, depth'),
        (SITES, "~ depth +", ValueError, 'cannot read the formula "~ depth \\+"'),
        (SITES.assign(t=pd.Timestamp("2020-01-01")), None, TypeError, 'the covariate "t" must be numeric'),
        (SITES, "y ~ depth", ValueError, 'nothing goes before ~; write "~ depth"'),
        (SITES, "~ depth | site", ValueError, "has several parts; join them"),
        (SITES, "~ offset(depth)", ValueError, "offsets have an argument of their own"),
        (SITES, "~ 0", ValueError, 'leaves no column; write "~ 1"'),
        (None, "~ depth", ValueError, r"from covariates \(none\)"),
        (SITES[:5], None, ValueError, "covariates have 5 rows and counts 12"),
        (np.ones((2, 2, 2)), None, ValueError, r"covariates must be a table.*\(2, 2, 2\)"),
        (np.ones(12), None, ValueError, 'the covariate "x0" is 1 in every unit, as the intercept'),
        (SITES.assign(site="a"), None, ValueError, 'the covariate "site" is a in every unit; drop it'),
        (np.ones((12, 2)), "~ 0 + x0 + x1", ValueError, '"x1" is a linear combination of "x0"'),
        (np.zeros((12, 1)), "~ 0 + x0", ValueError, 'the covariate "x0" is zero'),
        (np.random.default_rng(0).normal(size=(12, 11)), None, ValueError, "12 units are too few for 12 columns"),
        (pd.DataFrame([[1, 2]] * 12, columns=["a", "a"]), None, ValueError, 'two covariates are called "a"'),
        (SITES.assign(d2=3 * SITES.depth + 1), None, ValueError, '"d2" is a linear combination of "Intercept", "depth"'),
        (SITES.assign(b=SITES.site == "b"), None, ValueError, r'"b" is a linear combination of "site\[T.b\]"'),
    ],
)
def test_covariates_that_are_refused(covariates, formula, error, words):
    with pytest.raises(error, match=words):
        read(table(), covariates, formula)


def test_covariates_of_small_and_large_scale_are_not_taken_for_dependent():
    rng = np.random.default_rng(0)
    assert (
        read(
            table(), np.column_stack([1e-8 * rng.normal(size=12), 1e8 * rng.normal(size=12), 1e5 + rng.normal(size=12)])
        ).x.shape[1]
        == 4
    )


@pytest.mark.parametrize("what", ["covariates", "offsets"])
def test_rows_in_another_order_are_refused(what):
    y = frame(table())
    one = pd.DataFrame({"depth": np.linspace(0, 1, 12)}, index=y.index)
    given: Any = lambda value: {what: value}  # noqa: E731
    read(y, **given(one))
    read(y, **given(one.reset_index(drop=True)))
    read(y.to_numpy(), **given(one))
    with pytest.raises(ValueError, match=f'row 0 is "s0" in counts and "s11" in {what}; .* {what}.loc'):
        read(y, **given(one[::-1]))


# New units.


def test_new_units_are_coded_as_in_the_fit():
    y = frame(table())
    y["g5"] = 0
    sites = SITES.set_index(y.index)
    with pytest.warns(UserWarning, match="1 feature"):
        fit = read(y, sites, "~ site + depth", "total")
    more: Any = y.assign(g5=2)[y.columns[::-1]][:4]
    for counts in (more, more.drop(columns="g5")):
        new = like(fit, counts, sites[:4])
        np.testing.assert_array_equal(plain(new.counts), plain(fit.counts)[:4])
        np.testing.assert_array_equal(new.x, fit.x[:4])
        np.testing.assert_array_equal(new.offset, fit.offset[:4])
    new = like(fit, y.to_numpy()[:4], sites[:4], offsets=[1, 2, 3, 4])
    assert new.offset.tolist() == [[1], [2], [3], [4]] and new.features is fit.features
    wide = like(fit, more.drop(columns="g5"), sites[:4], offsets=np.tile(np.arange(6.0), (4, 1)))
    assert wide.offset[0].tolist() == [5, 4, 3, 2, 1, 0]
    np.testing.assert_array_equal(design(fit, sites[:4]), fit.x[:4])
    empty = more.copy()
    empty.iloc[1] = 0
    with pytest.warns(UserWarning, match=r"1 unit without counts \(s1\)"):
        new = like(fit, empty, sites[:4])
    assert new.kept_rows.tolist() == [True, False, True, True] and len(new.x) == 3


def test_new_units_that_are_refused():
    y, sites = frame(table()), SITES.set_axis([f"s{i}" for i in range(12)])
    fit = read(y, sites)
    few = y[:3]
    with pytest.raises(ValueError, match=r"lack 2 of its features \(g1, g3\)"):
        like(fit, few.drop(columns=["g1", "g3"]), sites[:3])
    with pytest.raises(ValueError, match=r"have 1 features that it had not \(new\)"):
        like(fit, few.assign(new=1), sites[:3])
    with pytest.raises(ValueError, match="have 6 features and the fit was given 7"):
        like(fit, few.to_numpy()[:, :6], sites[:3])
    with pytest.raises(ValueError, match='a covariate "wet" that the fit had not; give those of the fit: site, depth'):
        like(fit, few, sites[:3].assign(wet=1))
    with pytest.raises(ValueError, match='a covariate "x0" that the fit had not; give those of the fit: none'):
        like(read(y), few, [1, 2, 3])
    with pytest.raises(ValueError, match="the fit had covariates"):
        like(fit, few)
    with pytest.raises(ValueError, match='no covariate "depth"'):
        like(fit, few, sites[:3].drop(columns="depth"))
    with pytest.raises(ValueError, match='column "site" holds d at row 1, which is not among its categories'):
        like(fit, few, sites[:3].assign(site=list("adc")))
    with pytest.raises(TypeError, match='the covariate "site" held categories in the fit'):
        like(fit, few, sites[:3].assign(site=[1, 2, 3]))
    with pytest.raises(TypeError, match='the covariate "depth" held numbers in the fit'):
        like(fit, few, sites[:3].assign(depth=list("abc")))
    with pytest.raises(ValueError, match='the covariate "depth" is missing at unit "s1"'):
        like(fit, few, sites[:3].assign(depth=[1, np.nan, 2]))
    with pytest.raises(ValueError, match='the covariate "depth" is inf at unit "s1"'):
        like(fit, few, sites[:3].assign(depth=[1, np.inf, 2]))
    with pytest.raises(ValueError, match='no new unit has counts.*offsets="TSS" needs some'):
        like(read(y, sites, offsets="TSS"), few * 0, sites[:3])
    assert like(fit, few * 0, sites[:3]).counts.n == 3
    with pytest.raises(ValueError, match="the fit had offsets in an array"):
        like(read(y, offsets=np.zeros(12)), few)
    with pytest.raises(TypeError, match="leave offsets out"):
        like(fit, few, sites[:3], offsets="TSS")
    with pytest.raises(ValueError, match='cannot build "1 \\+ site"'):
        like(read(y, sites, "~ site"), few, sites[["depth"]][:3])


# Offsets.
